// Reports on a memory plan for people: the largest buffers at the peak, and a page that shows memory over the
// step. Pure.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "tessera/memory_plan.h"
#include "tessera/program.h"

namespace tessera {

// A buffer that is alive at the peak.
struct LiveBuffer {
  int program = 0;
  BufferId buffer = 0;
  int lifetime = 0;         // index of the lifetime that includes the peak; 0 for a persistent buffer
  std::int64_t offset = 0;  // in its space's arena
};

// The buffers alive at the plan's peak_instruction, including the persistent ones of every program. At most
// `most` of them, by descending bytes and then by offset. `programs` are the programs that were planned.
std::vector<LiveBuffer> largest_at_peak(IdSpan<const Program> programs, const MemoryPlan& plan, Space space,
                                        int most);

// A table for a person: bytes, category, name, and from which instruction to which the buffer lives.
std::string describe_largest(IdSpan<const Program> programs, const MemoryPlan& plan, Space space, int most);

// The device, and each other space in which the plan has a buffer.
std::vector<Space> spaces_held(const MemoryPlan& plan);

// When a space of the plan is at its peak: "#12 backward of block.3, microbatch 0 of the train program". "all
// times" if everything in the space is persistent.
std::string describe_peak(IdSpan<const Program> programs, const SpacePlan& space);

// The programs of one rank, or of all ranks with the same plan, and that plan. A program without an entry in
// `names` is shown by its kind.
struct PagePlan {
  std::string label;  // names the rank; shown if a page has several
  IdSpan<const Program> programs;
  const MemoryPlan* memory = nullptr;
  std::span<const std::string> names = {};
};

// One HTML document that needs no other file. The reader picks a rank, one of its spaces_held() and a
// program. The page shows live bytes by category over the instructions, the address of every buffer over time
// with its name and lifetime under the pointer, and the largest buffers at the peak. `title` is text, not
// HTML. `shown` is the index in `ranks` of the one that is shown first; UsageError if there is none, or if an
// entry has no plan.
std::string memory_page(std::span<const PagePlan> ranks, const std::string& title, std::size_t shown = 0);
// The page of a single rank.
std::string memory_page(IdSpan<const Program> programs, const MemoryPlan& plan, const std::string& title,
                        std::span<const std::string> names = {});

}  // namespace tessera
