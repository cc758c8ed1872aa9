// What goes to cuDNN, how it is sliced and where its tensors lie, against attention.h's own words about
// packed tensors. Needs neither cuDNN nor a GPU.
#include "kernels/cuda/cudnn_layout.h"

#include <gtest/gtest.h>

#include <vector>

#include "tests/kernels/attention_reference.h"

namespace tessera::kernels::cuda {
namespace {

using testing::bf16_shape;

// Calls function(item, head, row, channel, element) for each element of a slice's tensor that begins at
// `begin`.
template <class Function>
void for_each_element(const CudnnLayout& layout, std::int64_t begin, Function&& function) {
  for (std::int64_t i = 0; i < layout.dims[0]; ++i)
    for (std::int64_t h = 0; h < layout.dims[1]; ++h)
      for (std::int64_t r = 0; r < layout.dims[2]; ++r)
        for (std::int64_t c = 0; c < layout.dims[3]; ++c)
          function(i, h, r, c,
                   begin + i * layout.strides[0] + h * layout.strides[1] + r * layout.strides[2] +
                       c * layout.strides[3]);
}

TEST(CudnnLayout, SlicesCoverEveryElementOnceWhereItLies) {
  for (const AttentionShape& s :
       {bf16_shape(4, 3, 6, 6, 8), bf16_shape(4, 3, 6, 2, 8), bf16_shape(1, 5, 4, 1, 16)})
    for (const AttentionSlice& slice : {whole(s), AttentionSlice{1, s.kv_heads}, AttentionSlice{1, 1},
                                        AttentionSlice{s.batch, s.kv_heads}}) {
      const CudnnLayouts layouts = cudnn_layouts(s, slice);
      const std::int64_t d = s.head_channels(), row_numel = s.qkv_channels(), group = s.heads / s.kv_heads;
      std::vector<int> packed(static_cast<std::size_t>(s.batch * s.sequence * row_numel));
      std::vector<int> outputs(static_cast<std::size_t>(s.batch * s.sequence * s.channels));
      std::vector<int> sums(static_cast<std::size_t>(s.batch * s.heads * s.sequence));
      for (std::int64_t item = 0; item < s.batch; item += slice.items)
        for (std::int64_t kv = 0; kv < s.kv_heads; kv += slice.kv_heads) {
          const CudnnOffsets at = cudnn_offsets(s, item, kv);
          const auto touch = [](std::vector<int>& tensor, std::int64_t element, std::int64_t expected) {
            ASSERT_EQ(element, expected);
            ++tensor.at(static_cast<std::size_t>(element));
          };
          const std::int64_t first_head = kv * group;
          for_each_element(layouts.query, at.query, [&](auto i, auto h, auto r, auto c, auto element) {
            touch(packed, element, ((item + i) * s.sequence + r) * row_numel + (first_head + h) * d + c);
          });
          for (const std::int64_t part : {0, 1})  // keys, then values
            for_each_element(layouts.key_value, part == 0 ? at.key : at.value,
                             [&](auto i, auto h, auto r, auto c, auto element) {
                               touch(packed, element,
                                     ((item + i) * s.sequence + r) * row_numel + s.channels +
                                         (part * s.kv_heads + kv + h) * d + c);
                             });
          for_each_element(layouts.output, at.output, [&](auto i, auto h, auto r, auto c, auto element) {
            touch(outputs, element, ((item + i) * s.sequence + r) * s.channels + (first_head + h) * d + c);
          });
          for_each_element(layouts.statistics, at.statistics,
                           [&](auto i, auto h, auto r, auto, auto element) {
                             touch(sums, element, ((item + i) * s.heads + first_head + h) * s.sequence + r);
                           });
        }
      for (const auto& tensor : {packed, outputs, sums})
        for (const int times : tensor) ASSERT_EQ(times, 1);
    }
}

TEST(CudnnLayout, StatisticsOfASliceArePacked) {
  const AttentionShape s = bf16_shape(4, 100, 8, 2, 64);
  for (const AttentionSlice& slice : {whole(s), AttentionSlice{2, 2}, AttentionSlice{1, 1}}) {
    const CudnnLayout sums = cudnn_layouts(s, slice).statistics;
    EXPECT_EQ(sums.strides, (std::array<std::int64_t, 4>{sums.dims[1] * 100, 100, 1, 1}));
  }
}

TEST(CudnnLayout, SlicesAreTheLargestThatDivideAndFit) {
  const auto slice = [](const AttentionShape& s) { return backward_slice(s); };
  // GPT-2: 12 heads of 1024 x 1024 weights, 2 bytes each, are 24 MiB an item.
  EXPECT_EQ(slice(bf16_shape(8, 1024, 12, 12, 64)), (AttentionSlice{8, 12}));
  EXPECT_EQ(slice(bf16_shape(32, 1024, 12, 12, 64)), (AttentionSlice{16, 12}));
  EXPECT_EQ(slice(bf16_shape(26, 1024, 12, 12, 64)), (AttentionSlice{13, 12}));
  EXPECT_EQ(slice(bf16_shape(23, 1024, 12, 12, 64)), (AttentionSlice{1, 12})) << "a prime";
  // Llama 8B at 4096: 32 MiB a head and 4 for its gradients of shared keys and values, by four heads.
  EXPECT_EQ(slice(bf16_shape(4, 4096, 32, 8, 128)), (AttentionSlice{1, 2}));
  EXPECT_EQ(slice(bf16_shape(4, 16384, 32, 8, 128)), (AttentionSlice{1, 1}))
      << "does not fit, but cannot be cut";
  for (const std::int64_t batch : {1, 6, 30})
    for (const std::int64_t sequence : {2, 1000, 3000, 9000}) {
      const AttentionShape s = bf16_shape(batch, sequence, 12, 6, 64);
      const AttentionSlice one = slice(s);
      EXPECT_EQ(batch % one.items, 0);
      EXPECT_EQ(6 % one.kv_heads, 0);
      EXPECT_TRUE(one.items == 1 || one.kv_heads == 6);
      EXPECT_TRUE(cudnn_slice_bytes(s, one) <= kSliceBytes || one == (AttentionSlice{1, 1}));
    }
}

TEST(CudnnLayout, TakesWhatCudnnHasKernelsFor) {
  const AttentionShape s = bf16_shape(2, 200, 4, 2, 64);
  EXPECT_TRUE(cudnn_forward_fits(s) && cudnn_backward_fits(s));
  AttentionShape fp32 = s;
  fp32.type = DType::fp32;
  EXPECT_FALSE(cudnn_forward_fits(fp32) || cudnn_backward_fits(fp32));
  AttentionShape dropping = s;
  dropping.dropout.threshold = 1;
  EXPECT_FALSE(cudnn_forward_fits(dropping) || cudnn_backward_fits(dropping));
  EXPECT_TRUE(cudnn_backward_fits(bf16_shape(2, 200, 4, 2, 8)));
  for (const AttentionShape& other : {bf16_shape(2, 200, 4, 2, 30), bf16_shape(2, 200, 4, 2, 136),
                                      bf16_shape(2, 1, 4, 2, 64), bf16_shape(0, 200, 4, 2, 64)})
    EXPECT_FALSE(cudnn_forward_fits(other) || cudnn_backward_fits(other));
  // One head's weights: 2 bytes of 32768^2 are 2 GiB, of 65536^2 are 8.
  EXPECT_TRUE(cudnn_backward_fits(bf16_shape(1, 32768, 8, 8, 64)));
  EXPECT_TRUE(cudnn_forward_fits(bf16_shape(1, 65536, 8, 8, 64)));
  EXPECT_FALSE(cudnn_backward_fits(bf16_shape(1, 65536, 8, 8, 64)));
  EXPECT_TRUE(cudnn_backward_fits(bf16_shape(2, 63, 2, 2, 64)));
  EXPECT_FALSE(cudnn_backward_fits(bf16_shape(1, 63, 2, 2, 64))) << "126 statistics are no whole vectors";
  // Statistics of a slice would not begin at whole vectors.
  EXPECT_TRUE(cudnn_backward_fits(bf16_shape(4, 4100, 32, 8, 128)));
  EXPECT_FALSE(cudnn_backward_fits(bf16_shape(4, 4099, 32, 8, 128)));
}

}  // namespace
}  // namespace tessera::kernels::cuda
