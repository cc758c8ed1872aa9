// Addresses for all buffers of a trainer's programs. The sum is the allocation: what Tessera takes is exactly
// what is predicted here. Pure.
#pragma once

#include <array>
#include <cstdint>
#include <span>
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

// Places every buffer of the programs of one rank, which share one arena per space and never run at the same
// time. Buffers of equal name are one buffer. Persistent buffers lie first, at addresses of their own; others
// share memory where their lifetimes, in order of issue, do not meet, and where one address for all lifetimes
// of a buffer would cost memory, each may have its own, unless the buffer says one_address. Every offset is a
// multiple of the space's alignment; a buffer that never lives in any program takes no memory. Several orders
// of placement are tried and the smallest arena kept; the result depends on the programs alone. Throws
// UsageError, naming the buffer, where buffers of one name differ in bytes, space or in what they keep, where
// one program has a name twice, and where lifetimes are not ascending, disjoint and within the program.
MemoryPlan plan_memory(std::span<const Program> programs);

// Recomputes the waits of program number `index` of the plan: the fewest that order every pair of conflicting
// accesses and, where two buffers share addresses, every access of the earlier before any of the later.
// Without a plan (nullptr) only the first kind. Ascending, on other lanes only.
// Throws UsageError for an index or a count of buffers that does not match the plan, or a buffer id out of
// range.
void link(Program& program, const MemoryPlan* plan, int index);

// Bytes live at each instruction of the program, its own persistent buffers included, by category: the curve
// that `at_peak` is the top of, where no other program has persistent buffers of its own.
std::vector<CategoryBytes> live_bytes(const Program& program, Space space);

}  // namespace tessera
