// The parts that adapters add to a block's.
#pragma once

#include <vector>

#include "src/nn/block_graph.h"

namespace tessera::nn {

// What a layer's adapters run, and the parts of the layer itself that read what they make.
struct AdapterRuns {
  BlockLayer layer;
  const char *name, *name_of_gradients;         // of the first two parts below, and of the third
  void (BlockRun::*adapter)() const;            // makes the value between A and B
  void (BlockRun::*gradient)() const;           // the gradient of that
  void (BlockRun::*gradients)() const;          // those of A and B
  void (BlockRun::*of_layer)() const;           // adds B of the value
  void (BlockRun::*of_layer_gradient)() const;  // adds A of its gradient
  void (BlockRun::*of_layer_parameters)() const;
};
const AdapterRuns& adapter_runs(BlockLayer layer);

// Adds those of every layer that has adapters, ahead of the layer's own.
void add_adapters(const TransformerConfig& config, const BlockFlow& flow, std::vector<BlockPart>& parts);

}  // namespace tessera::nn
