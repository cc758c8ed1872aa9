// Causal attention of a few new tokens over the keys and values that were kept of those before them, for
// generation. On CUDA a head has at most 128 channels.
#pragma once

#include <cstdint>

#include "kernels/context.h"
#include "tessera/dtype.h"

namespace tessera::kernels {

// qkv [batch, rows, qkv_channels()] as in attention.h. The cache has keys [batch, kv_heads, capacity,
// head_channels()], then values of the same shape. Row r of each batch item is token `position` + r, whose
// place in the cache is the same.
struct CachedAttentionShape {
  std::int64_t batch = 0;
  std::int64_t rows = 0;
  std::int64_t capacity = 0;  // tokens that the cache has place for
  std::int64_t position = 0;  // tokens before the first row; enters no workspace
  std::int64_t channels = 0;  // of the output, a multiple of heads
  std::int64_t heads = 0;
  DType type = DType::fp32;   // of qkv, cache and output
  std::int64_t kv_heads = 0;  // divides heads; 0: as many as heads

  std::int64_t kv_heads_or_heads() const { return kv_heads > 0 ? kv_heads : heads; }
  std::int64_t head_channels() const { return channels / heads; }
  std::int64_t qkv_channels() const { return channels + 2 * kv_heads_or_heads() * head_channels(); }
  // Elements of the keys; the values have as many.
  std::int64_t keys_numel() const { return batch * kv_heads_or_heads() * capacity * head_channels(); }
  std::int64_t cache_bytes() const { return 2 * keys_numel() * bytes_of(type); }
  // Places are summed by blocks of so many, so that few rows, too, are work for many threads.
  std::int64_t block() const { return rows <= 8 && capacity > 512 ? 512 : capacity; }
  std::int64_t blocks() const { return capacity == 0 ? 0 : (capacity + block() - 1) / block(); }
  // Blocks that some row sees.
  std::int64_t visible_blocks() const { return (position + rows + block() - 1) / block(); }
};

std::int64_t cached_attention_workspace_bytes(const CachedAttentionShape& shape, const Target& target);

// Puts the rows' keys and values into the cache, at their places. Then output [batch, rows, channels] =
// softmax(query key^T / sqrt(head_channels)) value, where row r sees the first position + r + 1 places. What
// lies behind these is never read. Sums are fp32, by blocks of places whose size follows from `rows` and
// `capacity`. The same bits for any thread count; those of attention_forward() only up to rounding. Throws
// UsageError where the rows do not fit the cache.
void cached_attention_forward(const ComputeContext& context, const CachedAttentionShape& shape,
                              const void* qkv, void* cache, void* output);

}  // namespace tessera::kernels
