// The addresses of all buffers of a trainer's programs. A plan is also the allocation: Tessera takes exactly
// the bytes that the plan says. plan_memory() makes a plan.
#pragma once

#include <cstdint>
#include <vector>

#include "tessera/program.h"

namespace tessera {

using CategoryBytes = IdArray<std::int64_t, kCategories>;  // indexed by Category

// Buffers on the host and on the disk start on multiples of this. Blocks of this size can be moved between
// both past the system's page cache.
inline constexpr std::int64_t kBlockBytes = 4096;
constexpr std::int64_t alignment_of(Space space) {
  return space == Space::device ? kAlignmentBytes : kBlockBytes;
}

// One space of the plan.
struct SpacePlan {
  // The bytes that are allocated: the highest end of any buffer, rounded up to whole blocks on host and disk.
  std::int64_t arena_bytes = 0;
  // The largest sum of live bytes at any instruction, the persistent buffers of all programs included. No
  // plan can be smaller.
  std::int64_t live_peak_bytes = 0;
  // No plan can be smaller than this, either. At least live_peak_bytes, and more if buffers that keep one
  // address conflict pair by pair but are never alive all at once. Counts aligned bytes.
  std::int64_t bound_bytes = 0;
  int peak_program = 0;  // the first program and instruction that reach live_peak_bytes
  InstructionId peak_instruction = 0;
  CategoryBytes at_peak = {};         // live_peak_bytes by category
  std::int64_t persistent_bytes = 0;  // over all programs; buffers of one name count once
};

struct MemoryPlan {
  IdArray<SpacePlan, kSpaces> spaces;  // indexed by Space
  // [program][buffer][lifetime]: bytes from the start of the arena of the buffer's space. A persistent buffer
  // has one entry, and so has one that never lives (0).
  IdVector<IdVector<std::vector<std::int64_t>>> offsets;
  // The bytes on both sides of each buffer that belong to it and that nothing may touch. They count in
  // arena_bytes and bound_bytes alone.
  std::int64_t guard_bytes = 0;

  const SpacePlan& space(Space which) const { return spaces[which]; }
  std::int64_t offset(int program, BufferId buffer, std::size_t lifetime = 0) const {
    return offsets.at(program).at(buffer).at(lifetime);
  }
};

}  // namespace tessera
