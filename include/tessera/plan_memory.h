// Makes a memory plan: an address for each buffer of a trainer's programs. Pure.
#pragma once

#include <span>
#include <vector>

#include "tessera/memory_plan.h"
#include "tessera/program.h"

namespace tessera {

// Places every buffer of one rank's programs. The programs share one arena per space and never run at the
// same time. Buffers of equal name are one buffer.
// Persistent buffers come first, at addresses of their own. Other buffers share memory if their lifetimes, in
// order of issue, do not overlap. If one address for all lifetimes of a buffer would cost memory, each
// lifetime may get its own, unless the buffer says one_address. Every offset is a multiple of the space's
// alignment. A buffer that never lives in any program takes no memory. Several orders of placement are tried,
// and the smallest arena is kept. The result depends on the programs alone.
// `guard_bytes`, a multiple of kBlockBytes, stay free on both sides of each buffer while it lives: for tests
// that look for writes beyond a buffer.
// Throws UsageError, naming the buffer, if buffers of one name differ in bytes, space or persistence, if one
// program has a name twice, or if lifetimes are not ascending, disjoint and within the program. Throws
// UsageError if guard_bytes is no such multiple.
MemoryPlan plan_memory(std::span<const Program> programs, std::int64_t guard_bytes = 0);

// The live bytes at each instruction of the program, by category, including the program's own persistent
// buffers. SpacePlan::at_peak is the maximum of this curve if no other program has persistent buffers of its
// own.
IdVector<CategoryBytes> live_bytes(const Program& program, Space space);

}  // namespace tessera
