// quantize.h and layers in fp8 on CUDA against the CPU, which fp8_test.cpp holds to float64; and the bytes of
// scales that GPUs after Hopper take.
#include <cuda_runtime_api.h>

#include "kernels/cuda/scale_bytes.h"
#include "src/device/cuda_check.h"
#include "tessera/machine.h"
#include "tests/kernels/support.h"
#include "tests/refusal.h"

namespace tessera::kernels::testing {
namespace {

using device::check_cuda;

std::string missing_gpu() { return read_cuda_machine().unusable; }

// Memory of the GPU that begins poisoned, or with what it is given, between bytes that nobody may touch.
class OnGpu {
 public:
  OnGpu(std::int64_t bytes, const void* contents = nullptr) : bytes_(static_cast<std::size_t>(bytes)) {
    std::vector<unsigned char> all(bytes_ + 2 * kGuard, 0xff);
    if (contents != nullptr) std::memcpy(all.data() + kGuard, contents, bytes_);
    check_cuda(cudaMalloc(&memory_, all.size()), "cudaMalloc");
    check_cuda(cudaMemcpy(memory_, all.data(), all.size(), cudaMemcpyHostToDevice), "cudaMemcpy");
  }
  explicit OnGpu(const Tensor& tensor) : OnGpu(tensor.numel() * bytes_of(tensor.type()), tensor.data()) {}
  ~OnGpu() { device::ignore_cuda(cudaFree(memory_)); }
  OnGpu(const OnGpu&) = delete;
  OnGpu& operator=(const OnGpu&) = delete;

  void* data() const { return static_cast<char*>(memory_) + kGuard; }
  float* floats() const { return static_cast<float*>(data()); }
  std::vector<unsigned char> contents() const {
    check_cuda(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    std::vector<unsigned char> all(bytes_ + 2 * kGuard);
    check_cuda(cudaMemcpy(all.data(), memory_, all.size(), cudaMemcpyDeviceToHost), "cudaMemcpy");
    for (std::size_t i = 0; i < kGuard; ++i)
      EXPECT_TRUE(all[i] == 0xff && all[kGuard + bytes_ + i] == 0xff) << "written beside a buffer";
    return {all.begin() + kGuard, all.end() - kGuard};
  }
  Tensor tensor(DType type) const {
    Tensor result(type, static_cast<std::int64_t>(bytes_) / bytes_of(type));
    std::memcpy(result.data(), contents().data(), bytes_);
    return result;
  }

 private:
  static constexpr std::size_t kGuard = 256;
  std::size_t bytes_;
  void* memory_ = nullptr;
};

class Stream {
 public:
  Stream() { check_cuda(cudaStreamCreate(&stream_), "cudaStreamCreate"); }
  ~Stream() { device::ignore_cuda(cudaStreamDestroy(stream_)); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  ComputeContext context(const OnGpu* workspace = nullptr, std::int64_t bytes = 0) const {
    return {.workspace = {.data = workspace != nullptr ? workspace->data() : nullptr, .bytes = bytes},
            .device = DeviceType::cuda,
            .stream = stream_};
  }

 private:
  cudaStream_t stream_ = nullptr;
};

TEST(CudaFp8, QuantizesToTheBytesOfTheCpu) {
  if (const std::string missing = missing_gpu(); !missing.empty()) GTEST_SKIP() << missing;
  const Stream stream;
  Random random(1);
  for (const auto& [rows, columns] : {std::pair(16, 16), {128, 128}, {144, 272}, {272, 112}})
    for (const bool transposed : {false, true})
      for (const std::int64_t gap : {0, 48})
        for (const Fp8Tiles tiles : {Fp8Tiles::vectors, Fp8Tiles::blocks}) {
          const QuantizeShape s = {.rows = rows,
                                   .columns = columns,
                                   .transposed = transposed,
                                   .stride = (transposed ? rows : columns) + gap,
                                   .tiles = tiles};
          Tensor input = random.tensor(DType::bf16, s.stride * (transposed ? columns : rows));
          for (std::int64_t i = 0; i < input.numel(); ++i)
            input.set(i, i % 131 == 7 ? 0.0 : input.get(i) * std::exp(4.0 * random.normal()));
          if (gap > 0) input.set(5, std::nan(""));
          std::vector<unsigned char> values(static_cast<std::size_t>(rows * columns));
          std::vector<unsigned char> scales(static_cast<std::size_t>(s.scale_numel()) * sizeof(float), 0xff);
          quantize(TestContext(1), s, input.data(), values.data(), reinterpret_cast<float*>(scales.data()));
          const OnGpu from(input), to(rows * columns), its_scales(std::ssize(scales));
          quantize(stream.context(), s, from.data(), to.data(), its_scales.floats());
          EXPECT_EQ(to.contents(), values) << rows << " x " << columns << ", " << transposed;
          EXPECT_EQ(its_scales.contents(), scales) << rows << " x " << columns << ", " << transposed;
        }
  const OnGpu memory(4096);
  const QuantizeShape small = {.rows = 16, .columns = 16};
  tessera::testing::expect_words(tessera::testing::refusal([&] {
                                   quantize(stream.context(), small, static_cast<char*>(memory.data()) + 8,
                                            memory.data(), memory.floats());
                                 }),
                                 {"quantize", "multiples of 16 bytes"});
}

// Makes the first GPU current that has such products, Hopper or later; the first of all again at its end.
class GpuWithFp8 {
 public:
  GpuWithFp8() {
    const std::vector<CudaGpu> gpus = read_cuda_machine().gpus;
    for (std::size_t ordinal = 0; ordinal < gpus.size() && !found_; ++ordinal) {
      found_ = gpus[ordinal].major >= 9;
      if (found_) check_cuda(cudaSetDevice(static_cast<int>(ordinal)), "cudaSetDevice");
    }
  }
  ~GpuWithFp8() { device::ignore_cuda(cudaSetDevice(0)); }
  GpuWithFp8(const GpuWithFp8&) = delete;
  GpuWithFp8& operator=(const GpuWithFp8&) = delete;
  bool found() const { return found_; }

 private:
  bool found_ = false;
};

// `turn`, 1 or 2: other numbers, and a workspace that lies elsewhere, so that no pointer is that of the turn
// before.
void check_layers(const LinearShape& s, int turn) {
  SCOPED_TRACE(std::to_string(s.in) + " inputs, turn " + std::to_string(turn));
  const float beta = turn == 1 ? 1.0f : 0.0f;
  Random random(static_cast<std::uint64_t>(turn));
  const Tensor input = random.tensor(s.type, s.rows * s.in), weight = random.tensor(s.type, s.in * s.out);
  const Tensor bias = random.tensor(s.type, s.out), gradient = random.tensor(s.type, s.rows * s.out);
  const Tensor before = random.tensor(s.type, s.in * s.out, 10.0);
  const Stream stream;
  const Target gpu(1, DeviceType::cuda);
  const std::int64_t bytes = std::max(linear_workspace_bytes(s, gpu), linear_partial_workspace_bytes(s, gpu));
  const std::int64_t before_it = 512 * turn;
  const OnGpu workspace(before_it + bytes), x(input), w(weight), b(bias), dy(gradient);
  const OnGpu y(gradient.numel() * 2), dx(input.numel() * 2), sum(gradient.numel() * 4);
  const OnGpu dw(before);
  ComputeContext context = stream.context(&workspace, bytes);
  context.workspace.data = static_cast<char*>(workspace.data()) + before_it;
  linear_forward(context, s, x.data(), w.data(), b.data(), y.data());
  linear_backward_input(context, s, dy.data(), w.data(), 0.0f, dx.data());
  linear_backward_weight(context, s, dy.data(), x.data(), beta, dw.data());
  linear_forward_partial(context, s, x.data(), w.data(), sum.floats());

  const TestContext cpu(1, std::max(linear_workspace_bytes(s, 1), linear_partial_workspace_bytes(s, 1)));
  Tensor its_y(s.type, gradient.numel()), its_dx(s.type, input.numel()), its_dw = before;
  Tensor its_sum(DType::fp32, gradient.numel());
  linear_forward(cpu, s, input.data(), weight.data(), bias.data(), its_y.data());
  linear_backward_input(cpu, s, gradient.data(), weight.data(), 0.0f, its_dx.data());
  linear_backward_weight(cpu, s, gradient.data(), input.data(), beta, its_dw.data());
  linear_forward_partial(cpu, s, input.data(), weight.data(), its_sum.floats());
  expect_close(y.tensor(s.type), its_y.doubles(), 0.025, "forward");
  expect_close(dx.tensor(s.type), its_dx.doubles(), 0.025, "gradient of the input");
  expect_close(dw.tensor(s.type), its_dw.doubles(), 0.025, "gradient of the weight");
  expect_close(sum.tensor(DType::fp32), its_sum.doubles(), 2e-5, "forward in fp32");
}

// The products of a layer whose three extents are equal differ in their tiles alone, where beta is 0.
TEST(CudaFp8, LayersAgreeWithTheCpu) {
  if (const std::string missing = missing_gpu(); !missing.empty()) GTEST_SKIP() << missing;
  const GpuWithFp8 there;
  if (!there.found()) GTEST_SKIP() << "no GPU has a compute capability of 9.0 or more";
  for (const LinearShape& s : {LinearShape{144, 80, 208}, LinearShape{144, 144, 144}})
    for (const int turn : {1, 2}) {
      LinearShape layer = s;
      layer.type = DType::bf16;
      layer.fp8 = true;
      check_layers(layer, turn);
    }
}

// By the formulas of cuBLASLt's documentation (12.9, "1D Block Scaling Factors Layout"): within 128 rows and
// four groups of 32 columns a byte lies at row % 32 * 16 + row / 32 * 4 + group, and such pieces of 512 bytes
// follow each other along the columns.
TEST(CudaFp8, ScaleBytesLieAsCublasLtWants) {
  if (const std::string missing = missing_gpu(); !missing.empty()) GTEST_SKIP() << missing;
  const Stream stream;
  Random random(3);
  for (const Fp8Tiles tiles : {Fp8Tiles::vectors, Fp8Tiles::blocks}) {
    const QuantizeShape s = {.rows = 304, .columns = 400, .tiles = tiles};
    std::vector<float> scales(static_cast<std::size_t>(s.scale_numel()));
    for (float& scale : scales) scale = std::ldexp(1.0f, static_cast<int>(random.below(200)) - 100);
    const OnGpu from(std::ssize(scales) * 4, scales.data()), words(cuda::scale_words(s) * 4);
    cuda::write_scale_bytes(stream.context(), s, from.floats(), static_cast<std::uint32_t*>(words.data()));
    const std::vector<unsigned char> bytes = words.contents();
    ASSERT_EQ(bytes.size(), 3u * 4u * 512u);
    for (std::int64_t row = 0; row < 384; ++row)
      for (std::int64_t group = 0; group < 16; ++group) {
        const std::int64_t at =
            (row / 128 * 4 + group / 4) * 512 + row % 32 * 16 + row % 128 / 32 * 4 + group % 4;
        const int byte = bytes[static_cast<std::size_t>(at)];
        if (row >= s.rows) {
          ASSERT_EQ(byte, 0);
          continue;
        }
        if (group * 32 >= s.columns) continue;  // of the last tile, whose other bytes nobody reads
        const auto scale = static_cast<std::size_t>(s.scale_at(row, group * 32));
        ASSERT_EQ(std::ldexp(1.0f, byte - 127), scales[scale]) << row << ", " << group;
      }
  }
}

}  // namespace
}  // namespace tessera::kernels::testing
