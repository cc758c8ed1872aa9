// How a gradient is added up over all ranks, in one order of its own: equal texts for equal sums, whatever
// program makes them.
#pragma once

#include <string>

#include "src/verify/terms.h"
#include "tessera/mesh.h"

namespace tessera {

// The sum in words, from left to right. Where the parameter's own unit alone adds to it, its name is left
// out. Its numbers are microbatches, counted over all ranks (Rounds::number).
//
//   "0…7"                          one chain in fp32, in ascending order
//   "(0, 2…6) + (1, 3…7)"          two chains, whose sums are then added
//   "head + embed in bf16: 0…7"    a microbatch's gradient is itself a sum, of several uses
//   "(embed: 0…7) + (head: 0…7)"   two uses, each with a sum of its own
//
// A chain of one is that one, and a sum that begins with a sum goes on with it: neither changes a bit.
// Throws Error for a sum that prove() does not accept.
std::string global_sum(const Terms& terms, Term sum, const Mesh& mesh, const Rounds& rounds,
                       const IdVector<UnitOutline>& units, UnitId own);

}  // namespace tessera
