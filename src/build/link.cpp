// Computes the waits of a program: from the accesses to each buffer and, with a plan, from shared addresses.
#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "src/program/pieces.h"
#include "tessera/error.h"
#include "tessera/link.h"

namespace tessera {
namespace {

// Per lane, the latest instruction meant; −1 for none. Because a lane runs in order, the latest stands for
// all before it.
using Clock = IdArray<InstructionId, kLanes>;

constexpr Clock nothing() {
  Clock clock{};
  clock.fill(-1);
  return clock;
}

void join(Clock& into, const Clock& other) {
  for (std::size_t lane = 0; lane < kLanes; ++lane) into[lane] = std::max(into[lane], other[lane]);
}

// Which lifetime last held each byte of a space. Lifetimes that share an address never meet, so a lifetime
// may take its range over at its first access: whoever comes next sees all the accesses it made until then.
class AddressMap {
 public:
  // Gives [begin, end) to `occupant` and calls visit(previous occupant) for each range it takes over.
  template <typename Visit>
  void claim(std::int64_t begin, std::int64_t end, int occupant, Visit visit) {
    split(begin);
    split(end);
    auto from = segments_.lower_bound(begin);
    auto to = from;
    for (; to != segments_.end() && to->first < end; ++to) visit(to->second.occupant);
    segments_.erase(from, to);
    segments_.emplace(begin, Segment{end, occupant});
  }

 private:
  struct Segment {
    std::int64_t end;
    int occupant;
  };

  void split(std::int64_t at) {
    auto next = segments_.lower_bound(at);
    if (next == segments_.begin()) return;
    Segment& segment = std::prev(next)->second;
    if (segment.end <= at) return;
    segments_.emplace_hint(next, at, segment);
    segment.end = at;
  }

  std::map<std::int64_t, Segment> segments_;  // by begin; disjoint
};

// What happened to a stretch of a buffer up to the running instruction.
struct StretchHistory {
  Stretch bytes;
  InstructionId writer = -1;  // the last write
  Clock readers = nothing();  // since that write
};

// What happened to one buffer.
struct History {
  std::vector<StretchHistory> stretches;
  std::size_t lifetime = 0;  // the first that has not ended
  std::size_t claimed = 0;   // lifetimes before this one have taken their addresses
  std::size_t occupant = 0;  // of the current lifetime, once claimed
};

class Linker {
 public:
  using Offsets = IdVector<std::vector<std::int64_t>>;  // [buffer][lifetime]

  Linker(Program& program, const Offsets* offsets, std::int64_t guard_bytes)
      : program_(program), offsets_(offsets), guard_bytes_(guard_bytes) {
    for (const std::vector<Stretch>& of_buffer : stretches_of(program)) {
      std::vector<StretchHistory>& stretches = histories_.emplace_back().stretches;
      for (const Stretch& stretch : of_buffer) stretches.push_back({.bytes = stretch});
    }
  }

  void run() {
    known_.resize(program_.instructions.size());
    for (InstructionId id = 0; id < program_.instructions.count(); ++id) {
      const Clock wanted = dependencies(id);
      record(id);
      reduce(id, wanted);
    }
  }

 private:
  // The instructions that must be over before `id` starts.
  Clock dependencies(InstructionId id) {
    Clock wanted = nothing();
    each_buffer(id, [&](BufferId buffer, History& past) { enter_lifetime(wanted, id, buffer, past); });
    each_stretch(id, [&](StretchHistory& stretch, bool writes) {
      add(wanted, stretch.writer);
      if (writes) join(wanted, stretch.readers);
    });
    return wanted;
  }

  // Calls visit(buffer, history) for all that the instruction touches.
  template <class Visit>
  void each_buffer(InstructionId id, const Visit& visit) {
    const Instruction& instruction = program_.instructions[id];
    if (instruction.when >= 0) visit(instruction.when, history(instruction.when, id));
    for (const Operand& operand : instruction.operands) visit(operand.buffer, history(operand.buffer, id));
  }

  // Calls visit(stretch, writes).
  template <class Visit>
  void each_stretch(InstructionId id, const Visit& visit) {
    const Instruction& instruction = program_.instructions[id];
    if (instruction.when >= 0)
      for (StretchHistory& stretch : history(instruction.when, id).stretches) visit(stretch, false);
    for (const Operand& operand : instruction.operands)
      for (StretchHistory& stretch : history(operand.buffer, id).stretches)
        if (operand.region.meets(stretch.bytes.begin, stretch.bytes.end))
          visit(stretch, writes(operand.access));
  }

  // Where `id` is the first access in a lifetime, adds all accesses of those that held its addresses before:
  // earlier lifetimes of the same buffer count only where they did. It opens the lifetime for all stretches.
  void enter_lifetime(Clock& wanted, InstructionId id, BufferId buffer_id, History& past) {
    const Buffer& buffer = program_.buffers[buffer_id];
    if (offsets_ == nullptr || buffer.persistent || buffer.bytes == 0) return;
    const auto& lifetimes = buffer.lifetimes;
    while (past.lifetime < lifetimes.size() && lifetimes[past.lifetime].last < id) ++past.lifetime;
    // An access outside every lifetime has no claim on the addresses; the verifier reports it.
    if (past.lifetime == lifetimes.size() || lifetimes[past.lifetime].first > id) return;
    if (past.claimed > past.lifetime) return;
    past.claimed = past.lifetime + 1;
    for (StretchHistory& stretch : past.stretches) {
      stretch.writer = id;
      stretch.readers = nothing();
    }
    past.occupant = occupants_.size();
    occupants_.push_back(nothing());
    const std::int64_t begin = (*offsets_)[buffer_id].at(past.lifetime);
    addresses_[buffer.space].claim(begin - guard_bytes_, begin + buffer.bytes + guard_bytes_,
                                   static_cast<int>(past.occupant),
                                   [&](int earlier) { join(wanted, occupants_[earlier]); });
  }

  void record(InstructionId id) {
    const Lane lane = program_.instructions[id].lane;
    each_stretch(id, [&](StretchHistory& stretch, bool writes) {
      if (writes) {
        stretch.writer = id;
        stretch.readers = nothing();
      } else if (stretch.writer != id) {  // by another operand
        stretch.readers[lane] = id;
      }
    });
    each_buffer(id, [&](BufferId, const History& past) { occupy(past, lane, id); });
  }

  void occupy(const History& past, Lane lane, InstructionId id) {
    if (past.claimed == past.lifetime + 1) occupants_[past.occupant][lane] = id;
  }

  // Keeps of `wanted` what neither the lane's own order nor another kept wait implies.
  void reduce(InstructionId id, Clock wanted) {
    Instruction& instruction = program_.instructions[id];
    const auto own = static_cast<std::size_t>(instruction.lane);
    Clock known = lane_known_[own];
    for (std::size_t lane = 0; lane < kLanes; ++lane) {
      if (lane == own || wanted[lane] <= known[lane]) wanted[lane] = -1;
    }
    instruction.waits.clear();
    for (std::size_t lane = 0; lane < kLanes; ++lane) {
      if (wanted[lane] >= 0 && !implied(wanted, lane)) instruction.waits.push_back(wanted[lane]);
    }
    std::sort(instruction.waits.begin(), instruction.waits.end());
    for (const InstructionId wait : instruction.waits) join(known, known_[wait]);
    known[own] = id;
    known_[id] = known;
    lane_known_[own] = known;
  }

  bool implied(const Clock& wanted, std::size_t lane) const {
    for (std::size_t other = 0; other < kLanes; ++other) {
      if (other == lane || wanted[other] < 0) continue;
      if (known_[wanted[other]][lane] >= wanted[lane]) return true;
    }
    return false;
  }

  void add(Clock& wanted, InstructionId id) const {
    if (id < 0) return;
    const Lane lane = program_.instructions[id].lane;
    wanted[lane] = std::max(wanted[lane], id);
  }

  History& history(BufferId buffer, InstructionId id) {
    if (buffer < 0 || buffer >= histories_.count()) {
      throw UsageError(fmt::format("link: {} names buffer {}, but the program has buffers 0 to {}",
                                   describe(program_, id), buffer, histories_.count() - 1));
    }
    return histories_[buffer];
  }

  Program& program_;
  const Offsets* offsets_;
  const std::int64_t guard_bytes_;
  IdVector<History> histories_;  // by BufferId
  IdVector<Clock> occupants_;    // per lifetime that took its addresses: its latest access on each lane
  IdArray<AddressMap, kSpaces> addresses_;
  IdVector<Clock> known_;  // per instruction: what is over when it is over
  IdArray<Clock, kLanes> lane_known_ = [] {
    IdArray<Clock, kLanes> clocks{};
    clocks.fill(nothing());
    return clocks;
  }();
};

}  // namespace

void link(Program& program, const MemoryPlan* plan, int index) {
  const Linker::Offsets* offsets = nullptr;
  if (plan != nullptr) {
    if (index < 0 || index >= plan->offsets.count()) {
      throw UsageError(
          fmt::format("link: program {} is not one of the plan's {}", index, plan->offsets.size()));
    }
    offsets = &plan->offsets[index];
    if (offsets->size() != program.buffers.size()) {
      throw UsageError(fmt::format("link: the plan places {} buffers for program {}, which has {}",
                                   offsets->size(), index, program.buffers.size()));
    }
  }
  Linker(program, offsets, plan == nullptr ? 0 : plan->guard_bytes).run();
}

}  // namespace tessera
