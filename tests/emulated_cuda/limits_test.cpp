// What the CUDA backend refuses because of a GPU's limits, or of what it is asked for, in words that say what
// would be right.
#include <array>

#include "kernels/kernels.h"
#include "kernels/matmul_fp8.h"
#include "tessera/device.h"
#include "tests/emulated_cuda/kernels.h"
#include "tests/refusal.h"

namespace tessera::testing {
namespace {

const kernels::ComputeContext kOnGpu = {.workspace = {}, .device = DeviceType::cuda};

template <class Call>
void expect_unsupported(const Call& call, const std::vector<std::string>& words) {
  expect_words(refusal<UnsupportedError>(call), words);
}

TEST(CudaLimits, AreSaidWhereAHeadHasTooManyChannels) {
  const std::vector<std::string> words = {"on CUDA a head has at most ", " channels, not 4096"};
  std::array<float, 2048> frequencies{};
  expect_unsupported(
      [&] {
        kernels::attention_forward(kOnGpu, {.batch = 1, .sequence = 1, .channels = 4096, .heads = 1}, nullptr,
                                   nullptr, nullptr);
      },
      words);
  expect_unsupported(
      [&] {
        kernels::cached_attention_forward(
            kOnGpu, {.batch = 1, .rows = 1, .capacity = 1, .channels = 4096, .heads = 1}, nullptr, nullptr,
            nullptr);
      },
      words);
  expect_unsupported(
      [&] {
        kernels::rotary_forward(
            kOnGpu, {.batch = 1, .sequence = 1, .heads = 1, .head_channels = 4096, .row_numel = 4096},
            frequencies.data(), nullptr);
      },
      words);
}

TEST(CudaLimits, AreSaidOfProductsInFp8) {
  if (emulated_cuda::compute_capability(0) >= 90) GTEST_SKIP() << "the first GPU multiplies in fp8";
  const kernels::MatmulFp8Shape shape = {.m = 16, .n = 16, .k = 16};
  alignas(16) std::array<char, 1024> there{};
  const kernels::Fp8Matrix matrix = {there.data(), reinterpret_cast<const float*>(there.data())};
  kernels::ComputeContext context = kOnGpu;
  context.workspace = {.data = there.data(),
                       .bytes = kernels::matmul_fp8_workspace_bytes(shape, context.target())};
  expect_unsupported([&] { kernels::matmul_fp8(context, shape, matrix, matrix, nullptr, there.data()); },
                     {"matmul 16 x 16 x 16 fp8", "compute capability 8.0", "needs 9.0 or later (Hopper)"});
  const kernels::Fp8Matrix odd = {there.data() + 8, matrix.scales};
  expect_words(refusal([&] { kernels::matmul_fp8(context, shape, odd, matrix, nullptr, there.data()); }),
               {"on CUDA operands, scales and bias begin at multiples of 16 bytes"});
}

TEST(CudaLimits, AreSaidOfDevicesAndStreams) {
  expect_words(refusal<EnvironmentError>([] { make_cuda_device({.rank = 3, .ordinal = 99}); }),
               {"rank 3: GPU 99: this process sees ", "; use 0 to "});
  const std::unique_ptr<Device> device = make_cuda_device({});
  EXPECT_NE(device->name().find("cuda:0 ("), std::string::npos);
  expect_words(refusal([&] { device->make_stream({.name = "gather", .capacity = 0}); }),
               {"stream 'gather' with capacity 0: use at least 1"});
  expect_words(refusal([&] { device->make_stream({.name = "gather", .cpus = {1}}); }),
               {"stream 'gather' of a GPU has no thread for cpus"});
  const std::unique_ptr<Stream> on_host = device->make_host_stream({.name = "update"});
  const std::unique_ptr<Stream> on_gpu = device->make_stream({.name = "compute"});
  EXPECT_EQ(on_gpu->name(), "compute");
  Stream* const both[] = {on_gpu.get(), on_host.get()};
  expect_unsupported([&] { device->begin_capture(both); },
                     {"stream 'update' runs on the host: what it is given cannot be captured"});
  device->begin_capture({both, 1});  // the refused one left nothing behind
  device->drop_capture();
}

}  // namespace
}  // namespace tessera::testing
