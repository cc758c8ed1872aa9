// Rotary position embedding (Su et al. 2021) of the queries and keys of a packed qkv tensor. Frequencies and
// angles are in rotary_math.h. The same bits for any thread count and instruction set.
#pragma once

#include <cstdint>

#include "kernels/context.h"
#include "tessera/dtype.h"

namespace tessera::kernels {

// tensor [batch, sequence, row_numel]; of each row the first `heads` * `head_channels` elements are rotated,
// head by head.
struct RotaryShape {
  std::int64_t batch = 0;
  std::int64_t sequence = 0;
  std::int64_t heads = 0;          // query and key heads together
  std::int64_t head_channels = 0;  // even
  std::int64_t row_numel = 0;      // at least heads * head_channels
  DType type = DType::fp32;
};

// Of the table of angles, [sequence, head_channels] fp32.
std::int64_t rotary_workspace_bytes(const RotaryShape& shape);

// In place: channel i of the first half of a head and channel i of the second are turned by the angle
// place * frequencies[i] ("rotate half", the convention of Hugging Face's checkpoints; others pair
// neighbouring channels, which is the same model with permuted query and key weights). `frequencies`
// [head_channels / 2], in host memory on every device, see rotary_frequencies(). A head has at most 512
// channels on CUDA.
void rotary_forward(const ComputeContext& context, const RotaryShape& shape, const float* frequencies,
                    void* tensor);

// In place, on the gradient: turns back by the same angles.
void rotary_backward(const ComputeContext& context, const RotaryShape& shape, const float* frequencies,
                     void* gradient);

}  // namespace tessera::kernels
