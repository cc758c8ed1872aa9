// Adds the waits between a program's lanes that make every access to memory safe. Pure.
#pragma once

#include "tessera/memory_plan.h"
#include "tessera/program.h"

namespace tessera {

// Recomputes the waits of program number `index` of the plan: the fewest that order every pair of conflicting
// accesses and, if two buffers share addresses, every access to the earlier buffer before any to the later.
// Without a plan (nullptr) only conflicting accesses are ordered. An instruction's waits are ascending, and
// name instructions on other lanes only. Throws UsageError for an index or a count of buffers that does not
// match the plan, or a buffer id out of range.
void link(Program& program, const MemoryPlan* plan, int index);

}  // namespace tessera
