// Makes every access of a program safe by waits between its lanes. Pure.
#pragma once

#include "tessera/memory_plan.h"
#include "tessera/program.h"

namespace tessera {

// Recomputes the waits of program number `index` of the plan: the fewest that order every pair of conflicting
// accesses and, where two buffers share addresses, every access of the earlier before any of the later.
// Without a plan (nullptr) only the first kind. Ascending, on other lanes only.
// Throws UsageError for an index or a count of buffers that does not match the plan, or a buffer id out of
// range.
void link(Program& program, const MemoryPlan* plan, int index);

}  // namespace tessera
