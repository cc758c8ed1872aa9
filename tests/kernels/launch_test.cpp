// The launch arithmetic of the CUDA kernels, which needs no GPU.
#include "kernels/cuda/launch.h"

#include <gtest/gtest.h>

#include <vector>

#include "kernels/cuda/matmul_place.h"

namespace tessera::kernels::cuda {
namespace {

const void* address(std::uintptr_t value) { return reinterpret_cast<const void*>(value); }

// What the threads of a sweep touch, as sweep_kernel does it.
std::vector<int> touched(const Sweep& sweep, int width, std::int64_t numel) {
  std::vector<int> times(static_cast<std::size_t>(numel));
  const std::int64_t threads = std::int64_t{sweep.blocks} * kBlock;
  for (std::int64_t thread = 0; thread < threads; ++thread) {
    for (std::int64_t i = thread; i < sweep.vectors; i += threads)
      for (int j = 0; j < width; ++j) ++times.at(static_cast<std::size_t>(i * width + j));
    for (std::int64_t i = sweep.vectors * width + thread; i < sweep.numel; i += threads)
      ++times.at(static_cast<std::size_t>(i));
  }
  return times;
}

TEST(Launch, ASweepTouchesEachElementOnce) {
  for (const int width : {1, 4, 8})
    for (const std::int64_t numel : {1, 3, 4, 7, 255, 256, 257, 1003, 4096, 100001})
      for (const std::uintptr_t offset : {0, 2, 4, 8}) {
        const Sweep sweep = sweep_of(numel, width, {{address(4096), 4}, {address(4096 + offset), 2}});
        for (const int times : touched(sweep, width, numel))
          ASSERT_EQ(times, 1) << numel << " elements, width " << width << ", offset " << offset;
      }
}

TEST(Launch, NothingIsNotLaunched) {
  EXPECT_EQ(sweep_of(0, 4, {{address(16), 4}}).blocks, 0u);
  EXPECT_EQ(row_sweep_of(0, 64, 4, {{address(16), 4}}, {}).blocks, 0u);
  EXPECT_EQ(row_sweep_of(64, 0, 4, {{address(16), 4}}, {}).blocks, 0u);
}

TEST(Launch, GridsStayLegalBeyond32Bits) {
  const std::int64_t numel = (std::int64_t{1} << 33) + 3;
  const Sweep sweep = sweep_of(numel, 4, {{address(256), 4}});
  EXPECT_EQ(sweep.vectors, std::int64_t{1} << 31);
  EXPECT_EQ(sweep.blocks, kMostBlocks);
  EXPECT_EQ(sweep_of(numel, 4, {{address(260), 4}}).vectors, 0);
  EXPECT_EQ(row_sweep_of(std::int64_t{1} << 32, 64, 4, {}, {}).blocks, kMostBlocks);
  // Just enough blocks below that.
  EXPECT_EQ(sweep_of(4 * kBlock * 1000, 4, {}).blocks, 1000u);
  EXPECT_EQ(sweep_of(4 * kBlock * 1000 + 4, 4, {}).blocks, 1001u);
}

TEST(Launch, VectorsNeedEveryOperandAligned) {
  EXPECT_TRUE(is_aligned(4, {{address(256), 4}, {address(8), 2}, {nullptr, 4}}));
  EXPECT_FALSE(is_aligned(4, {{address(256), 4}, {address(4), 2}}));
  EXPECT_FALSE(is_aligned(4, {{address(8), 4}}));
  EXPECT_TRUE(is_aligned(8, {{address(16), 4}})) << "wider vectors are several accesses of kVectorBytes";
  EXPECT_TRUE(is_aligned(1, {{address(2), 2}, {address(4), 4}}));
  EXPECT_EQ(width_of(2), 8);
  EXPECT_EQ(width_of(4), 4);
}

TEST(Launch, RowsAreVectorizedOnlyIfAllBeginAligned) {
  const auto vectorized = [](std::int64_t columns, std::uintptr_t start, std::int64_t stride) {
    return row_sweep_of(10, columns, 8, {{address(start), 2}}, {stride}).vectorized;
  };
  EXPECT_TRUE(vectorized(64, 256, 64));
  EXPECT_FALSE(vectorized(60, 256, 64));
  EXPECT_FALSE(vectorized(64, 264, 64));
  EXPECT_FALSE(vectorized(64, 256, 68));
}

TEST(Launch, RowBlocksAreWholeWarpsWithinTheLimit) {
  for (const std::int64_t columns : {1, 8, 75, 256, 768, 4096, 11008, 65536}) {
    const RowSweep sweep = row_sweep_of(10, columns, 8, {{address(256), 2}}, {});
    EXPECT_EQ(sweep.threads % kWarp, 0) << columns;
    EXPECT_GE(sweep.threads, kWarp) << columns;
    EXPECT_LE(sweep.threads, kMostRowThreads) << columns;
    const std::int64_t items = sweep.vectorized ? columns / 8 : columns;
    EXPECT_TRUE(sweep.threads >= items || sweep.threads == kMostRowThreads) << columns;
    EXPECT_LT(sweep.threads - items, kWarp) << columns << ": idle warps";
    EXPECT_EQ(one_vector_each(sweep, 8), columns % 8 == 0 && columns <= 4096) << columns;
  }
}

TEST(Launch, GroupsOfRowsCoverAllRowsInOrder) {
  for (const std::int64_t rows : {1, 2, 63, 64, 255, 1000, 8192, 100000})
    for (const std::int64_t columns : {1, 75, 768, 8192, 65536})
      for (const std::int64_t groups : {row_groups_of(rows, columns), column_groups_of(rows)}) {
        EXPECT_EQ(group_begin(rows, groups, 0), 0);
        EXPECT_EQ(group_begin(rows, groups, groups), rows);
        for (std::int64_t group = 0; group < groups; ++group) {
          const std::int64_t size = group_begin(rows, groups, group + 1) - group_begin(rows, groups, group);
          ASSERT_GE(size, 1) << rows << " rows, group " << group << " of " << groups;
          ASSERT_LE(size, rows / groups + 1) << rows << " rows, group " << group << " of " << groups;
        }
      }
  EXPECT_LE(row_groups_of(1 << 20, 65536) * 65536 * 8, std::int64_t{256} << 20)
      << "the workspace stays small";
}

TEST(Launch, PowersOfTwo) {
  for (const auto& [value, power] : std::vector<std::pair<std::int64_t, std::int64_t>>{
           {0, 1}, {1, 1}, {2, 2}, {3, 4}, {2048, 2048}, {2049, 4096}})
    EXPECT_EQ(next_power_of_two(value), power) << value;
}

TEST(MatmulPlace, AnOperandsAlignmentIsItsOwn) {
  const MatmulShape logits = {
      .m = 2, .n = 64, .k = 75, .input_type = DType::bf16, .output_type = DType::fp32};
  const MatmulPlace place = place_of(logits, address(4098), address(4104), nullptr, address(4096 + 256));
  EXPECT_EQ(place.a, 2);
  EXPECT_EQ(place.b, 8);
  EXPECT_EQ(place.c, 16) << "of fp32 no algorithm takes 2";
  EXPECT_EQ(place.bias_copy_bytes, 0);
}

TEST(MatmulPlace, ABiasThatNoVectorCanBeReadFromIsCopied) {
  const MatmulShape shape = {.m = 2, .n = 200, .k = 64, .bias = true};
  const auto copied = [&](const MatmulShape& of, std::uintptr_t bias) {
    return place_of(of, address(4096), address(4096), address(bias), address(4096)).bias_copy_bytes;
  };
  EXPECT_EQ(copied(shape, 4096 + 16), 0);
  EXPECT_EQ(copied(shape, 4096 + 8), 1024);
  MatmulShape wide = shape;
  wide.n = kMatmulWorkspaceBytes / 4 + 1;
  EXPECT_EQ(copied(wide, 4096), 0);
  EXPECT_THROW(copied(wide, 4096 + 8), UnsupportedError);
}

}  // namespace
}  // namespace tessera::kernels::cuda
