// Functions that several modules share: checks, and the gradients of a layer's parameters.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/kernels.h"
#include "tessera/module.h"

namespace tessera::nn {

// Dims are below this, so that bytes can be counted in 64 bits.
inline constexpr std::int64_t kMostPerDim = std::int64_t{1} << 31;

// Indices of optimizer groups in Model::groups. Matrices have weight decay; biases and norms have none.
inline constexpr int kDecay = 0;
inline constexpr int kNoDecay = 1;

// Short names for modules.
inline constexpr ValueId kBatch = SharedValue::batch, kInput = SharedValue::input,
                         kOutput = SharedValue::output, kOutputGradient = SharedValue::output_gradient,
                         kInputGradient = SharedValue::input_gradient;

// Throws UsageError naming `field` unless 1 ≤ value < 2^31.
void check_dim(std::string_view model, std::string_view field, std::int64_t value);

// The rows of a table of tokens that are a multiple of `multiple`.
constexpr std::int64_t padded_rows(std::int64_t vocabulary, std::int64_t multiple) {
  return (vocabulary + multiple - 1) / multiple * multiple;
}

// Throws UnsupportedError for fp16, which the kernels do not compute in.
void check_type(std::string_view model, DType type);

// What each of so many tensor ranks has of a model's `count`. Throws UsageError naming `what` unless they
// have equal parts.
std::int64_t part_of(std::string_view model, std::string_view what, std::int64_t count, int ranks);

// Throws UsageError unless the target's tensor ranks exchange in one chunk, naming what does not cut its own.
void check_one_chunk(std::string_view what, const Target& target);

// Appends the pieces of a value, which has so many bytes and may be one that units share, one for each chunk.
// Returns the first.
ValueId add_pieces(IdVector<ValueSpec>& values, ValueId of, std::int64_t bytes, int chunks);
// Makes the pieces of a value by an exchange of the pieces of what it is exchanged from, in place of the
// whole. Appends those that are not there. For one chunk nothing changes.
void exchange_in_chunks(IdVector<ValueSpec>& values, ValueId made, const Target& target);

// ", on 2 tensor ranks"; empty for one. For Module::numerics().
std::string words_of_ranks(const Target& target, bool sequence_parallel = true);

// The threshold of a share that is `field` of a model. Throws UsageError naming the field unless 0 <= share <
// 1.
std::uint32_t dropout_threshold(std::string_view model, std::string_view field, double share);

// The dropout of a training step's batch with this threshold; in other steps nothing is dropped. Give the
// same `matrix` in every pass, and a different one for each tensor that the unit drops from.
kernels::Dropout dropout_of(const ModuleContext& context, std::uint32_t threshold, std::int64_t matrix);

// The context for a kernel: device, stream, threads and workspace of the module's context.
kernels::ComputeContext compute_context(const ModuleContext& context);
// PartSpec::gradients of a part of backward that writes none.
inline const std::vector<int> kNoGradients;

// The gradients of a linear layer. Its weight is parameter `weight`, and its bias, if it has one, is the next
// parameter. Frozen parameters are skipped.
struct LinearGradients {
  kernels::LinearShape shape;
  const void* input = nullptr;
  const void* output_gradient = nullptr;
  std::size_t weight = 0;
  bool bias = true;
};
void linear_parameter_gradients(const ModuleContext& context, const kernels::ComputeContext& compute,
                                const LinearGradients& arguments);

}  // namespace tessera::nn
