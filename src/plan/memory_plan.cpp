// Gathers the buffers of all programs by name, packs each space, and says where the peak is.
#include "tessera/plan_memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <string_view>
#include <unordered_map>

#include "src/plan/packing.h"
#include "tessera/error.h"

namespace tessera {
namespace {

using Index = std::size_t;

std::int64_t aligned(std::int64_t bytes, Space space) { return round_up(bytes, alignment_of(space)); }

// The buffers of one name in all programs.
struct Shared {
  const Buffer* buffer;               // in the first program that has it
  int program;                        // the last program seen to have it
  std::vector<Lifetime> lives;        // in all programs, on one axis of positions
  std::vector<std::int64_t> offsets;  // of each life; one for a buffer without
  Index taken = 0;                    // offsets handed out to the programs' plans
};

void require_equal(const Buffer& a, const Buffer& b) {
  if (a.bytes == b.bytes && a.space == b.space && a.persistent == b.persistent &&
      a.one_address == b.one_address)
    return;
  const auto words = [](const Buffer& buffer) {
    return fmt::format("{} bytes of {} memory, {}{}", buffer.bytes, name_of(buffer.space),
                       buffer.persistent ? "persistent" : "not persistent",
                       buffer.one_address ? ", at one address" : "");
  };
  throw UsageError(fmt::format(
      "plan_memory: buffer '{}' is {} in one program and {} in another; one name must mean one buffer",
      a.name, words(a), words(b)));
}

void require_sound(const Buffer& buffer, const Program& program) {
  const auto refuse = [&](const std::string& why) {
    throw UsageError(fmt::format("plan_memory: buffer '{}' {}", buffer.name, why));
  };
  if (buffer.bytes < 0) refuse(fmt::format("has {} bytes; 0 or more would be right", buffer.bytes));
  if (buffer.persistent && !buffer.lifetimes.empty()) refuse("is persistent, yet has lifetimes");
  InstructionId from = 0;
  for (const Lifetime& life : buffer.lifetimes) {
    if (life.first < from || life.last < life.first ||
        static_cast<Index>(life.last) >= program.instructions.size()) {
      refuse(
          fmt::format("lives from #{} to #{}; lifetimes must be ascending, disjoint and within the {} "
                      "instructions of the program",
                      life.first, life.last, program.instructions.size()));
    }
    from = life.last + 1;
  }
}

// All buffers of a trainer, by name, in order of first appearance.
class Inventory {
 public:
  explicit Inventory(std::span<const Program> programs) {
    InstructionId start = 0;  // of the program, on the common axis: programs never run at the same time
    for (Index program = 0; program < programs.size(); ++program) {
      for (const Buffer& buffer : programs[program].buffers) {
        require_sound(buffer, programs[program]);
        add(buffer, static_cast<int>(program), start);
      }
      start += programs[program].instructions.count();
    }
  }

  std::vector<Shared>& all() { return all_; }

  // The offsets of a buffer's lifetimes; to be called once for each program, in their order.
  std::vector<std::int64_t> take_offsets(const Buffer& buffer) {
    Shared& shared = all_[by_name_.at(buffer.name)];
    if (buffer.lifetimes.empty()) return {shared.lives.empty() ? shared.offsets.at(0) : 0};
    const auto from = shared.offsets.begin() + static_cast<std::ptrdiff_t>(shared.taken);
    shared.taken += buffer.lifetimes.size();
    return {from, from + static_cast<std::ptrdiff_t>(buffer.lifetimes.size())};
  }

 private:
  void add(const Buffer& buffer, int program, InstructionId start) {
    const auto [entry, is_new] = by_name_.try_emplace(buffer.name, all_.size());
    if (is_new) all_.push_back({.buffer = &buffer, .program = -1, .lives = {}, .offsets = {}});
    Shared& shared = all_[entry->second];
    if (shared.program == program) {
      throw UsageError(
          fmt::format("plan_memory: two buffers of program {} are called '{}'", program, buffer.name));
    }
    shared.program = program;
    require_equal(*shared.buffer, buffer);
    for (const Lifetime& life : buffer.lifetimes)
      shared.lives.push_back({start + life.first, start + life.last});
  }

  std::vector<Shared> all_;
  std::unordered_map<std::string_view, Index> by_name_;  // views into the programs
};

// What a packing of buffers puts at one address: `lives` of a buffer from number `first_life` on.
struct Packed {
  Shared* shared;
  Index first_life;
};

struct Passing {
  std::int64_t guard_bytes = 0;  // on both sides of each
  std::vector<Packed> buffers;   // by item
  std::vector<PackItem> items;

  void add(Shared& shared, Index first_life, std::vector<Lifetime> lives) {
    buffers.push_back({&shared, first_life});
    items.push_back(
        {aligned(shared.buffer->bytes, shared.buffer->space) + 2 * guard_bytes, std::move(lives)});
  }
};

// The buffers of a space that are not persistent: each whole, or each life that may lie elsewhere by itself.
Passing passing_buffers(std::vector<Shared>& all, Space space, bool by_life, std::int64_t guard_bytes) {
  Passing passing{.guard_bytes = guard_bytes, .buffers = {}, .items = {}};
  for (Shared& shared : all) {
    if (shared.buffer->space != space || shared.buffer->persistent || shared.lives.empty()) continue;
    if (!by_life || shared.buffer->one_address) {
      passing.add(shared, 0, shared.lives);
      continue;
    }
    for (Index life = 0; life < shared.lives.size(); ++life) passing.add(shared, life, {shared.lives[life]});
  }
  return passing;
}

// Where the last buffer ends: up to an alignment below the packing's height.
std::int64_t end_of(const Passing& passing, const Packing& packing) {
  std::int64_t end = 0;
  for (Index item = 0; item < passing.items.size(); ++item)
    end = std::max(end, packing.offsets[item] + passing.buffers[item].shared->buffer->bytes);
  return end;  // without guards, which all have
}

// Places the persistent buffers of a space one after the other and the others above them.
void place_space(std::vector<Shared>& all, Space space, std::int64_t guard_bytes, SpacePlan& plan) {
  std::int64_t base = 0;
  const auto end_at = [&](std::int64_t offset, const Buffer& buffer) {
    if (buffer.bytes > 0) plan.arena_bytes = std::max(plan.arena_bytes, offset + buffer.bytes + guard_bytes);
  };
  for (Shared& shared : all) {
    if (shared.buffer->space != space) continue;
    shared.offsets.assign(std::max<Index>(shared.lives.size(), 1), 0);
    if (!shared.buffer->persistent) continue;
    shared.offsets[0] = base + guard_bytes;
    end_at(shared.offsets[0], *shared.buffer);
    base += aligned(shared.buffer->bytes, space) + 2 * guard_bytes;
    plan.persistent_bytes += shared.buffer->bytes;
  }
  Passing passing = passing_buffers(all, space, false, guard_bytes);
  Packing packing = pack(passing.items);
  if (packing.height > packing.live_peak) {
    // Fewer items are packed better and sooner, so lives part only where that may help.
    Passing parted = passing_buffers(all, space, true, guard_bytes);
    Packing other = pack(parted.items);
    packing.bound = other.bound;
    if (end_of(parted, other) < end_of(passing, packing)) {
      packing = std::move(other);
      passing = std::move(parted);
    }
  }
  plan.bound_bytes = base + packing.bound;
  for (Index item = 0; item < passing.items.size(); ++item) {
    const auto [shared, first] = passing.buffers[item];
    const std::int64_t offset = base + packing.offsets[item] + guard_bytes;
    for (Index life = 0; life < passing.items[item].lives.size(); ++life)
      shared->offsets[first + life] = offset;
    end_at(offset, *shared->buffer);
  }
  if (space != Space::device) plan.arena_bytes = aligned(plan.arena_bytes, space);
}

// Bytes of the buffers that are live at each instruction and not persistent.
std::vector<CategoryBytes> passing_bytes(const Program& program, Space space) {
  std::vector<CategoryBytes> curve(program.instructions.size() + 1, CategoryBytes{});
  for (const Buffer& buffer : program.buffers) {
    if (buffer.space != space) continue;
    const auto category = static_cast<Index>(buffer.category);
    for (const Lifetime& life : buffer.lifetimes) {
      curve.at(static_cast<Index>(life.first))[category] += buffer.bytes;
      curve.at(static_cast<Index>(life.last) + 1)[category] -= buffer.bytes;
    }
  }
  for (Index i = 1; i < curve.size(); ++i) {
    for (Index category = 0; category < kCategories; ++category) curve[i][category] += curve[i - 1][category];
  }
  curve.pop_back();
  return curve;
}

std::int64_t total(const CategoryBytes& bytes) {
  return std::accumulate(bytes.begin(), bytes.end(), std::int64_t{0});
}

void find_peak(std::span<const Program> programs, Space space, const std::vector<Shared>& all,
               SpacePlan& plan) {
  std::int64_t most = -1;
  for (Index program = 0; program < programs.size(); ++program) {
    const std::vector<CategoryBytes> curve = passing_bytes(programs[program], space);
    for (Index position = 0; position < curve.size(); ++position) {
      if (total(curve[position]) <= most) continue;
      most = total(curve[position]);
      plan.at_peak = curve[position];
      plan.peak_program = static_cast<int>(program);
      plan.peak_instruction = static_cast<InstructionId>(position);
    }
  }
  for (const Shared& shared : all) {
    if (shared.buffer->space != space || !shared.buffer->persistent) continue;
    plan.at_peak[static_cast<Index>(shared.buffer->category)] += shared.buffer->bytes;
  }
  plan.live_peak_bytes = total(plan.at_peak);
}

}  // namespace

MemoryPlan plan_memory(std::span<const Program> programs, std::int64_t guard_bytes) {
  if (guard_bytes < 0 || guard_bytes % kBlockBytes != 0) {
    throw UsageError(fmt::format("plan_memory: guard_bytes is {}; a multiple of {}, or 0, would be right",
                                 guard_bytes, kBlockBytes));
  }
  Inventory inventory(programs);
  MemoryPlan plan;
  plan.guard_bytes = guard_bytes;
  for (Index space = 0; space < kSpaces; ++space) {
    place_space(inventory.all(), static_cast<Space>(space), guard_bytes, plan.spaces[space]);
    find_peak(programs, static_cast<Space>(space), inventory.all(), plan.spaces[space]);
  }
  for (const Program& program : programs) {
    IdVector<std::vector<std::int64_t>>& offsets = plan.offsets.emplace_back();
    for (const Buffer& buffer : program.buffers) offsets.push_back(inventory.take_offsets(buffer));
  }
  return plan;
}

IdVector<CategoryBytes> live_bytes(const Program& program, Space space) {
  IdVector<CategoryBytes> curve = passing_bytes(program, space);
  CategoryBytes persistent = {};
  for (const Buffer& buffer : program.buffers) {
    if (buffer.space == space && buffer.persistent) {
      persistent[static_cast<Index>(buffer.category)] += buffer.bytes;
    }
  }
  for (CategoryBytes& bytes : curve) {
    for (Index category = 0; category < kCategories; ++category) bytes[category] += persistent[category];
  }
  return curve;
}

}  // namespace tessera
