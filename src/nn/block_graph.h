// A transformer block as a graph: its values and its parts, on one rank or split over several.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "src/nn/block_run.h"

namespace tessera::nn {

// What a part spends its time on: a matrix product, attention, a norm, putting heads together, the activation
// function, or moving memory.
enum class BlockWork : std::uint8_t {
  memory,
  norm,
  qkv,
  heads,
  attention,
  projection,
  up,
  activation,
  down,
  adapter
};

// Which of a layer's gradients: a bias's may be summed by the part that makes what it is the sum of.
enum class BlockGradients : std::uint8_t { all, weight, bias };

// A part, and what runs it. Shapes do not enter.
struct BlockPart {
  const char* name;
  Pass pass;
  void (BlockRun::*run)() const;
  std::vector<ValueId> reads, writes;
  BlockWork work = BlockWork::memory;
  // The layer whose parameters' gradients it writes; nullptr: none.
  std::size_t BlockIndices::*gradients = nullptr;
  BlockGradients which = BlockGradients::all;
  BlockLayer adapted = BlockLayer::qkv;  // the layer whose adapters it is of, where that is its work
  int chunk = kAllChunks;  // of rows, that it runs on; of these its reads and writes are the pieces
};

// In the order in which they run.
std::vector<BlockPart> block_parts(const TransformerConfig& config, const BlockFlow& flow);
UnitGraph block_graph(const TransformerConfig& config, const BlockShapes& shapes, const Target& target);

// The operations of a score and of a value's part, for each pair of tokens.
double pair_flops(const BlockShapes& shapes);

}  // namespace tessera::nn
