// A transformer block in chunks of rows (ModuleContext::exchange_chunks): the pieces of its values, and the
// order in which its parts run on them, so that one chunk travels between tensor ranks while a product runs
// on another.
#pragma once

#include <vector>

#include "src/nn/block_graph.h"

namespace tessera::nn {

// The same parts, those that go row by row once for each chunk and on its pieces. Attention, which looks at
// other rows, and the gradients of parameters, which are sums over rows, stay whole.
std::vector<BlockPart> in_chunks(const BlockFlow& flow, const std::vector<BlockPart>& parts);

// Appends the pieces, and lets ranks exchange these in place of whole values.
void cut_into_chunks(const BlockFlow& flow, const BlockShapes& shapes, const Target& target,
                     IdVector<ValueSpec>& values);

}  // namespace tessera::nn
