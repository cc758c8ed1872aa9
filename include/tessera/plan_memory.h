// Makes a memory plan: an address for each buffer of a trainer's programs. Pure.
#pragma once

#include <span>
#include <vector>

#include "tessera/memory_plan.h"
#include "tessera/program.h"

namespace tessera {

// Places every buffer of the programs of one rank, which share one arena per space and never run at the same
// time. Buffers of equal name are one buffer. Persistent buffers lie first, at addresses of their own; others
// share memory where their lifetimes, in order of issue, do not meet, and where one address for all lifetimes
// of a buffer would cost memory, each may have its own, unless the buffer says one_address. Every offset is a
// multiple of the space's alignment; a buffer that never lives in any program takes no memory. Several orders
// of placement are tried and the smallest arena kept; the result depends on the programs alone. Throws
// UsageError, naming the buffer, where buffers of one name differ in bytes, space or in what they keep, where
// one program has a name twice, and where lifetimes are not ascending, disjoint and within the program.
MemoryPlan plan_memory(std::span<const Program> programs);

// Bytes live at each instruction of the program, its own persistent buffers included, by category: the curve
// that `at_peak` is the top of, where no other program has persistent buffers of its own.
std::vector<CategoryBytes> live_bytes(const Program& program, Space space);

}  // namespace tessera
