// The addresses of all buffers of a trainer's programs. The sum is the allocation: what Tessera takes is
// exactly what is predicted here. plan_memory() makes a plan.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "tessera/program.h"

namespace tessera {

using CategoryBytes = std::array<std::int64_t, kCategories>;

// Buffers of a space start on multiples of this: on the disk, and on the host what is read from there, in
// whole blocks, so that both can be moved past the system's page cache.
inline constexpr std::int64_t kBlockBytes = 4096;
constexpr std::int64_t alignment_of(Space space) {
  return space == Space::device ? kAlignmentBytes : kBlockBytes;
}

// One space of the plan.
struct SpacePlan {
  // What is allocated: the highest end of any buffer; of host and disk, that in whole blocks.
  std::int64_t arena_bytes = 0;
  // The largest sum of live bytes at any instruction, the persistent buffers of all programs included: no
  // plan can do better.
  std::int64_t live_peak_bytes = 0;
  // No plan can do better; at least live_peak_bytes, and more where buffers that keep one address meet pair
  // by pair but never all at once. Counts aligned bytes.
  std::int64_t bound_bytes = 0;
  int peak_program = 0;  // where live_peak_bytes is reached first
  InstructionId peak_instruction = 0;
  CategoryBytes at_peak = {};         // that sum by category
  std::int64_t persistent_bytes = 0;  // of all programs, each name once
};

struct MemoryPlan {
  std::array<SpacePlan, kSpaces> spaces;  // indexed by Space
  // [program][buffer][lifetime]: bytes from the start of its space's arena. One entry for a buffer that is
  // persistent, and for one that never lives (0).
  std::vector<std::vector<std::vector<std::int64_t>>> offsets;

  const SpacePlan& space(Space which) const { return spaces[static_cast<std::size_t>(which)]; }
  std::int64_t offset(int program, BufferId buffer, std::size_t lifetime = 0) const {
    return offsets.at(static_cast<std::size_t>(program)).at(static_cast<std::size_t>(buffer)).at(lifetime);
  }
};

}  // namespace tessera
