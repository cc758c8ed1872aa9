// Data races: walks the instructions in order of issue and keeps, for every stretch of bytes, who wrote it
// last and who read it since. As long as all pairs before were ordered, an access that is ordered behind
// those few is ordered behind all, so one look per stretch proves every pair.
#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "src/verify/checks.h"

namespace tessera {
namespace {

struct Range {
  std::int64_t begin = 0;
  std::int64_t end = 0;
};

struct Access {
  InstructionId instruction = -1;
  BufferId buffer = -1;
  Range piece = {};  // of the buffer; 0 and 0: all of it
};

// Bytes with one history.
struct Stretch {
  std::int64_t end = 0;
  Access writer;                      // the last
  IdArray<Access, kLanes> readers{};  // since that write, the last of each lane
};

class Bytes {
 public:
  // Calls visit(stretch) for the stretches of [begin, end), cut to it; bytes never touched before included.
  template <typename Visit>
  void each(std::int64_t begin, std::int64_t end, Visit visit) {
    cut(begin);
    cut(end);
    auto at = stretches_.lower_bound(begin);
    while (begin < end) {
      if (at == stretches_.end() || at->first > begin) {
        const std::int64_t until = at == stretches_.end() ? end : std::min(end, at->first);
        at = stretches_.emplace_hint(at, begin, Stretch{.end = until, .writer = {}});
      }
      visit(at->second);
      begin = at->second.end;
      ++at;
    }
  }

  // Makes [begin, end), already visited, one stretch that `writer` wrote.
  void overwrite(std::int64_t begin, std::int64_t end, const Access& writer) {
    const auto first = stretches_.lower_bound(begin);
    stretches_.erase(std::next(first), stretches_.lower_bound(end));
    first->second = {.end = end, .writer = writer};
  }

 private:
  void cut(std::int64_t at) {
    const auto next = stretches_.lower_bound(at);
    if (next == stretches_.begin()) return;
    Stretch& before = std::prev(next)->second;
    if (before.end <= at) return;
    stretches_.emplace_hint(next, at, before);
    before.end = at;
  }

  std::map<std::int64_t, Stretch> stretches_;  // by begin; disjoint
};

class Races {
 public:
  Races(const Program& program, int index, const PlannedProgram& planned, const HappensBefore& order,
        Findings& findings)
      : program_(program), index_(index), planned_(planned), order_(order), findings_(findings) {
    if (planned.plan != nullptr) return;
    std::int64_t next = 0;
    for (const Buffer& buffer : program.buffers) {
      own_.push_back({next, next + std::max<std::int64_t>(buffer.bytes, 1)});
      next = own_.back().end;
    }
  }

  void run() {
    for (InstructionId id = 0; id < program_.instructions.count(); ++id) {
      const Instruction& instruction = program_.instructions[id];
      const bool in_pieces = std::ranges::any_of(
          instruction.operands, [](const Operand& operand) { return operand.region.is_piece(); });
      if (in_pieces) {
        for (const Operand& operand : instruction.operands)
          if (reads(operand.access)) read(access_of(id, operand), instruction.lane);
        for (const Operand& operand : instruction.operands)
          if (writes(operand.access)) write(access_of(id, operand));
      } else {  // each buffer once
        for (const BufferId buffer : instruction.reads()) read({id, buffer}, instruction.lane);
        for (const BufferId buffer : instruction.writes()) write({id, buffer});
      }
      if (findings_.full()) return;
    }
  }

 private:
  static Access access_of(InstructionId id, const Operand& operand) {
    return {id, operand.buffer, {operand.region.begin, operand.region.end}};
  }

  void read(const Access& access, Lane lane) {
    Access conflict;
    const Range range = range_of(access);
    bytes_of(access.buffer).each(range.begin, range.end, [&](Stretch& stretch) {
      keep_latest(conflict, stretch.writer, access);
      stretch.readers[lane] = access;
    });
    if (conflict.instruction >= 0) report(conflict, access, "writes", "reads");
  }

  void write(const Access& access) {
    Access writer, reader;
    const Range range = range_of(access);
    bytes_of(access.buffer).each(range.begin, range.end, [&](Stretch& stretch) {
      keep_latest(writer, stretch.writer, access);
      for (const Access& of_lane : stretch.readers) keep_latest(reader, of_lane, access);
    });
    if (writer.instruction >= 0) report(writer, access, "writes", "writes");
    if (reader.instruction >= 0) report(reader, access, "reads", "writes");
    if (range.begin < range.end) bytes_of(access.buffer).overwrite(range.begin, range.end, access);
  }

  // Of the earlier accesses that `access` does not wait for, the last one is named: a wait for it would do.
  void keep_latest(Access& conflict, const Access& earlier, const Access& access) const {
    if (earlier.instruction <= conflict.instruction || earlier.instruction == access.instruction) return;
    if (!order_.ordered(earlier.instruction, access.instruction)) conflict = earlier;
  }

  void report(const Access& first, const Access& second, std::string_view does, std::string_view then) {
    const std::string& buffer = program_.buffers[first.buffer].name;
    const std::string& other = program_.buffers[second.buffer].name;
    const std::string what =
        first.buffer == second.buffer
            ? fmt::format("{} '{}' and {} {} it", does, buffer, describe(program_, second.instruction), then)
            : fmt::format("{} '{}' and {} {} '{}', which shares addresses", does, buffer,
                          describe(program_, second.instruction), then, other);
    findings_.add(
        Fault::unordered_access, index_, {first.instruction, second.instruction},
        fmt::format("{} {}, but neither waits for the other", describe(program_, first.instruction), what));
  }

  // The bytes that the buffer holds at the access. One outside every lifetime is another check's finding.
  Range range_of(const Access& access) const {
    if (planned_.plan == nullptr) return within(own_[access.buffer], access.piece);
    const Buffer& buffer = program_.buffers[access.buffer];
    const int life = std::max(lifetime_at(buffer, access.instruction), 0);
    const std::int64_t begin =
        planned_.plan->offset(planned_.index, access.buffer, static_cast<std::size_t>(life));
    return within({begin, begin + buffer.bytes}, access.piece);
  }
  static Range within(const Range& all, const Range& piece) {
    if (piece.end == 0) return all;
    return {std::min(all.begin + piece.begin, all.end), std::min(all.begin + piece.end, all.end)};
  }
  Bytes& bytes_of(BufferId id) { return spaces_[program_.buffers[id].space]; }

  const Program& program_;
  int index_;
  const PlannedProgram& planned_;
  const HappensBefore& order_;
  Findings& findings_;
  IdVector<Range> own_;  // by buffer, without a plan: bytes that no other has, and one at least
  IdArray<Bytes, kSpaces> spaces_;
};

}  // namespace

void check_accesses(const Program& program, int index, const PlannedProgram& planned,
                    const HappensBefore& order, Findings& findings) {
  Races(program, index, planned, order, findings).run();
}

void check_waits(const Program& program, int index, const HappensBefore& order, Findings& findings) {
  for (InstructionId id = 0; id < program.instructions.count(); ++id) {
    const std::vector<InstructionId>& waits = program.instructions[id].waits;
    for (InstructionId wait : waits)
      if (order.redundant(id, wait))
        findings.add(Fault::redundant_wait, index, {wait, id},
                     fmt::format("{} waits for {}, which its lane or its other waits imply",
                                 describe(program, id), describe(program, wait)));
  }
}

}  // namespace tessera
