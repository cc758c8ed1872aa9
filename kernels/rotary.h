// Rotary position embedding (Su et al. 2021) of the queries and keys of a packed qkv tensor. Frequencies and
// angles are in rotary_math.h. The same bits for any thread count and instruction set.
#pragma once

#include <cstdint>

#include "kernels/context.h"
#include "tessera/dtype.h"

namespace tessera::kernels {

// tensor [batch, sequence, row_numel]. The first `heads` * `head_channels` elements of each row are rotated,
// head by head.
struct RotaryShape {
  std::int64_t batch = 0;
  std::int64_t sequence = 0;
  std::int64_t heads = 0;          // query and key heads together
  std::int64_t head_channels = 0;  // even
  std::int64_t row_numel = 0;      // at least heads * head_channels
  DType type = DType::fp32;
  std::int64_t first_place = 0;  // of each sequence's first row, among all rows of a longer one
};

// Bytes of the table of cosines and sines, [sequence, head_channels] fp32, that the CPU makes in each call. A
// GPU has no table: a block makes the angles of its rows (cuda/rotary.cu).
std::int64_t rotary_workspace_bytes(const RotaryShape& shape);

// Rotates in place. Channel i of a head's first half and channel i of its second half are a pair, which is
// rotated by the angle (first_place + place) * frequencies[i]. This is "rotate half", the convention of
// Hugging Face's checkpoints. Others pair neighbouring channels, which is the same model with permuted query
// and key weights. `frequencies` [head_channels / 2] is in host memory on every device, see
// rotary_frequencies(). On CUDA a head has at most 512 channels.
void rotary_forward(const ComputeContext& context, const RotaryShape& shape, const float* frequencies,
                    void* tensor);

// Rotates the gradient back by the same angles, in place.
void rotary_backward(const ComputeContext& context, const RotaryShape& shape, const float* frequencies,
                     void* gradient);

}  // namespace tessera::kernels
