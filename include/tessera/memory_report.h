// What a memory plan says to a person: the largest buffers at the peak, and a page that shows memory over the
// step. Pure.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "tessera/memory_plan.h"
#include "tessera/program.h"

namespace tessera {

// A buffer that holds something at the peak.
struct LiveBuffer {
  int program = 0;
  BufferId buffer = 0;
  int lifetime = 0;         // number of the lifetime that holds the peak; 0 for a persistent buffer
  std::int64_t offset = 0;  // in its space's arena
};

// The buffers alive at the plan's peak_instruction, persistent ones of every program included: by descending
// bytes, then by offset, at most `most` of them. `programs` are those that were planned.
std::vector<LiveBuffer> largest_at_peak(std::span<const Program> programs, const MemoryPlan& plan,
                                        Space space, int most);

// A table for a person: bytes, category, name, and from which instruction to which the buffer lives.
std::string describe_largest(std::span<const Program> programs, const MemoryPlan& plan, Space space,
                             int most);

// The device, and each other space in which the plan has anything.
std::vector<Space> spaces_held(const MemoryPlan& plan);

// "#12 backward of block.3, microbatch 0 of the train program": when a space of the plan is at its peak;
// "all times" where all that it holds persists.
std::string describe_peak(std::span<const Program> programs, const SpacePlan& space);

// Of one rank, or of all that plan the same: its programs, their plan, and their names as far as there are
// any; others are shown by their kind.
struct PagePlan {
  std::string label;  // which rank; shown where a page has several
  std::span<const Program> programs;
  const MemoryPlan* memory = nullptr;
  std::span<const std::string> names = {};
};

// One HTML document that needs no other file: for each rank, to choose from, each of its spaces_held(), and
// each program, live bytes by category over its instructions and the place of every buffer in the arena over
// time, with names and lifetimes under the pointer; the largest buffers at the peak. `title` is text, not
// HTML; `shown` is the rank that is shown first. UsageError where `ranks` has no such, or one without a plan.
std::string memory_page(std::span<const PagePlan> ranks, const std::string& title, std::size_t shown = 0);
// Of one rank alone.
std::string memory_page(std::span<const Program> programs, const MemoryPlan& plan, const std::string& title,
                        std::span<const std::string> names = {});

}  // namespace tessera
