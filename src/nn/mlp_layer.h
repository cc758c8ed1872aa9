// The two kinds of layers that an MLP is a chain of, and how tensor ranks split them.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "tessera/module.h"

namespace tessera::nn {

// How tensor ranks share a layer. Layers stand in pairs. The outputs of a pair's first layer are split by
// columns. Its second layer reads them as they are, so that its own outputs are partial sums. What a pair
// hands on is split by rows. A last layer without a partner works on the rows that a rank has.
enum class LayerSplit : std::uint8_t {
  none,     // one rank has all of it
  outputs,  // a rank has some rows of the weight [out, in], and of the bias
  inputs,   // a rank has some columns of the weight
  rows      // all ranks have the weight, and each some rows of the batch
};

// Where a layer stands, and its dims, which count those of all ranks.
struct MlpLayer {
  std::string name;
  DType type = DType::fp32;
  int index = 0;
  bool last = false;
  std::int64_t in = 0;
  std::int64_t out = 0;
  std::int64_t inputs = 0;  // of the batch

  bool first() const { return index == 0; }  // its input is the batch: fp32, and nobody wants its gradient
  ValueId source() const { return first() ? SharedValue::batch : SharedValue::input; }
  // On several ranks.
  LayerSplit split() const {
    return index % 2 == 1 ? LayerSplit::inputs : last ? LayerSplit::rows : LayerSplit::outputs;
  }
};

// gelu(input weight^T + bias). Saves the pre-activation.
std::unique_ptr<Module> make_hidden_layer(MlpLayer layer);
// The last layer and the loss. It has no bias: softmax over few classes hardly needs one.
std::unique_ptr<Module> make_classifier(MlpLayer layer);

// The layer's weight, cut as its split says.
ParameterSpec weight_of(const MlpLayer& layer);
// Uniform with the deviation that keeps the variance of activations under a rectifier (He et al. 2015).
Initial weight_initial(const MlpLayer& layer);

// Bytes of a batch's inputs, fp32 and padded. Its classes, int32, follow them.
std::int64_t inputs_bytes(std::int64_t sequences, std::int64_t inputs);

// What one rank has of a layer, for one microbatch.
struct MlpShapes {
  LayerSplit split;
  std::int64_t rows = 0;        // of the batch
  std::int64_t own_rows = 0;    // of the batch, where rows are split
  std::int64_t in = 0;          // columns of the weight
  std::int64_t out = 0;         // rows of the weight
  std::int64_t cast_bytes = 0;  // of the layer's input, where that is cast
  double flops = 0;             // of the layer's product

  // Throws UsageError where the ranks cannot have equal parts.
  MlpShapes(const MlpLayer& layer, const BatchShape& shape, int tensor_ranks);

  std::int64_t input_rows() const { return split == LayerSplit::rows ? own_rows : rows; }
};

// The layer's input in its type: as it is in `source`, or cast into the value `cast`, where the source is the
// batch and the type is not fp32. Of a batch whose rows are split, those of this rank.
const void* layer_input(const ModuleContext& context, const MlpLayer& layer, const MlpShapes& shapes,
                        ValueId source, ValueId cast);

}  // namespace tessera::nn
