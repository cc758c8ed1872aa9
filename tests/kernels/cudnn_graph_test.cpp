// Every slice that goes to cuDNN has a deterministic plan within its workspace, on each kind of GPU that
// kernels are compiled for: cuDNN itself plans for a description of the GPU, over a driver of the tests' own.
// Nothing runs: what the plans compute, kernels_cuda_test sees on a GPU.
#include "kernels/cuda/cudnn_graph.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tessera/error.h"
#include "tessera/machine.h"
#include "tests/program/sampled.h"

namespace tessera::kernels::cuda {
namespace {

struct Gpu {
  const char* name;
  int capability, multiprocessors, shared_bytes, l2_bytes;
};
constexpr Gpu kGpus[] = {{"A100", 80, 108, 166912, 41943040},
                         {"H100", 90, 132, 232448, 52428800},
                         {"B200", 100, 148, 232448, 132120576}};

// cuDNN reads these names; clocks and memory steer its choices a little.
std::string description_of(const Gpu& gpu) {
  return fmt::format(
      R"({{"maxGridSize":[2147483647,65535,65535],"maxBlockSize":[1024,1024,64],"regsPerBlock":65536,)"
      R"("multiProcessorCount":{},"warpSize":32,"maxSharedMemoryPerBlock":49152,)"
      R"("maxSharedMemoryPerBlockOptin":{},"reservedSharedMemoryPerBlock":1024,"maxRegistersPerSM":65536,)"
      R"("maxCtasPerSM":32,"maxThreadsPerBlock":1024,"maxThreadsPerSM":2048,"pciDeviceId":0,"isTccDriver":0,)"
      R"("supportCoopLaunch":1,"totalGlobalMem":80000000000,"smClockRateKHz":1755000,)"
      R"("memClockRateKHz":2619000,"l2CacheSize":{},"cudaDeviceId":0,"deviceVer":{},"driverVer":13000,)"
      R"("deviceName":"{}"}})",
      gpu.multiprocessors, gpu.shared_bytes, gpu.l2_bytes, gpu.capability * 10, gpu.name);
}

class CudnnGraph : public ::testing::TestWithParam<Gpu> {
 protected:
  void SetUp() override {
    if (read_cuda_machine().unusable.empty()) GTEST_SKIP() << "there is a GPU, and its own driver";
    ASSERT_NE(dlopen(TESSERA_FAKE_DRIVER, RTLD_NOW | RTLD_GLOBAL), nullptr) << dlerror();
  }

  AttentionGraph compile(const AttentionShape& shape, const AttentionSlice& slice, bool backward,
                         std::int64_t workspace_bytes) {
    const CudnnTarget target{.capability = GetParam().capability, .description = description_of(GetParam())};
    return AttentionGraph(shape, slice, backward, target, workspace_bytes);
  }
};

std::vector<AttentionShape> shapes() {
  std::vector<AttentionShape> shapes;
  const auto add = [&](std::int64_t batch, std::int64_t sequence, std::int64_t heads, std::int64_t kv_heads,
                       std::int64_t head_channels) {
    shapes.push_back({.batch = batch,
                      .sequence = sequence,
                      .channels = heads * head_channels,
                      .heads = heads,
                      .type = DType::bf16,
                      .kv_heads = kv_heads});
  };
  add(8, 1024, 12, 12, 64);   // GPT-2
  add(32, 1024, 12, 12, 64);  // in slices of items
  add(2, 4096, 32, 8, 128);   // Llama 8B, in slices of heads
  add(1, 8192, 32, 32, 128);  // in slices of a head
  add(2, 2, 4, 2, 64);
  add(2, 63, 4, 4, 64);
  add(2, 200, 4, 2, 128);
  add(3, 1000, 6, 2, 72);
  add(1, 256, 4, 1, 8);
  return shapes;
}

// A plan takes seconds to make: every test run plans each shape for one kind of GPU, and for each kind a
// third of them.
TEST_P(CudnnGraph, FindsAPlanWithinTheWorkspace) {
  const int each = tessera::testing::sampled_each(3);
  int drawn = GetParam().capability / 10;
  for (const AttentionShape& shape : shapes()) {
    if (drawn++ % each != 0) continue;
    ASSERT_TRUE(cudnn_forward_fits(shape) && cudnn_backward_fits(shape));
    const AttentionSlice slice = backward_slice(shape);
    EXPECT_LE(compile(shape, whole(shape), false, kSpareBytes).workspace_bytes(), kSpareBytes);
    const std::int64_t bytes = cudnn_slice_bytes(shape, slice);
    EXPECT_LE(compile(shape, slice, true, bytes).workspace_bytes(), bytes);
  }
}

TEST_P(CudnnGraph, NeedsWhatIsCounted) {
  const AttentionShape shape = {
      .batch = 2, .sequence = 256, .channels = 512, .heads = 4, .type = DType::bf16, .kv_heads = 2};
  const std::int64_t counted = cudnn_slice_bytes(shape, whole(shape)) - kSpareBytes;
  const std::int64_t needed = compile(shape, whole(shape), true, counted + kSpareBytes).workspace_bytes();
  EXPECT_LE(needed, counted + 4096) << "the spare bytes are for other versions";
  EXPECT_GE(needed, 2 * 4 * 256 * 4);
}

TEST_P(CudnnGraph, RefusesLessMemoryThanAPlanNeeds) {
  const AttentionShape shape = {
      .batch = 2, .sequence = 256, .channels = 512, .heads = 4, .type = DType::bf16, .kv_heads = 2};
  try {
    compile(shape, whole(shape), true, 1024);
    FAIL() << "compiled";
  } catch (const UnsupportedError& error) {
    EXPECT_NE(std::string(error.what()).find("2 x 256, 4 heads of 128 channels, 2 of keys and values"),
              std::string::npos)
        << error.what();
    EXPECT_NE(std::string(error.what()).find("-DTESSERA_WITH_CUDNN=OFF"), std::string::npos) << error.what();
  }
}

// Running gets as far as cuDNN, which has no handle: the graph asks for no tensor besides those that are
// named.
TEST_P(CudnnGraph, TakesItsTensorsByName) {
  const AttentionShape shape = {
      .batch = 2, .sequence = 256, .channels = 512, .heads = 4, .type = DType::bf16, .kv_heads = 2};
  alignas(256) static std::byte memory[256];
  const auto why_not = [&](AttentionGraph& graph) -> std::string {
    try {
      graph.run(memory);
    } catch (const EnvironmentError& error) {
      return error.what();
    }
    return "ran";
  };
  for (const bool backward : {false, true}) {
    AttentionGraph graph = compile(shape, whole(shape), backward, cudnn_slice_bytes(shape, whole(shape)));
    for (std::int64_t name = kQuery; name <= (backward ? kValueGradient : kStatistics); ++name)
      if (name != kKey) graph.set(static_cast<CudnnTensor>(name), memory);
    EXPECT_NE(why_not(graph).find("Uid 2 not found"), std::string::npos) << why_not(graph);
    graph.set(kKey, memory);
    EXPECT_NE(why_not(graph).find("CUDNN_STATUS_BAD_PARAM"), std::string::npos) << why_not(graph);
  }
}

INSTANTIATE_TEST_SUITE_P(Gpus, CudnnGraph, ::testing::ValuesIn(kGpus),
                         [](const auto& one) { return std::string(one.param.name); });

}  // namespace
}  // namespace tessera::kernels::cuda
