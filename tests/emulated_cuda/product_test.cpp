// matmul.h on CUDA, by its own source and the stand-in for cuBLASLt, against float64.
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <array>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "kernels/cuda/matmul_workspace.h"
#include "src/device/cuda_check.h"
#include "tessera/error.h"
#include "tests/emulated_cuda/gpu_services.h"
#include "tests/kernels/matmul_reference.h"

namespace tessera::kernels::testing {
namespace {

using device::check_cuda;

// A tensor's copy in a GPU's memory, that begins `shift` bytes behind an aligned address.
class OnGpu {
 public:
  OnGpu(const Tensor& tensor, std::int64_t shift)
      : bytes_(static_cast<std::size_t>(tensor.numel() * bytes_of(tensor.type()))), shift_(shift) {
    check_cuda(cudaMalloc(&memory_, bytes_ + static_cast<std::size_t>(shift)), "cudaMalloc");
    set(tensor);
  }
  ~OnGpu() { device::ignore_cuda(cudaFree(memory_)); }
  OnGpu(const OnGpu&) = delete;
  OnGpu& operator=(const OnGpu&) = delete;

  void* data() const { return static_cast<char*>(memory_) + shift_; }
  void set(const Tensor& tensor) {
    check_cuda(cudaMemcpy(data(), tensor.data(), bytes_, cudaMemcpyHostToDevice), "cudaMemcpy");
  }
  Tensor get(Tensor like) const {
    check_cuda(cudaMemcpy(like.data(), data(), bytes_, cudaMemcpyDeviceToHost), "cudaMemcpy");
    return like;
  }

 private:
  std::size_t bytes_;
  std::int64_t shift_;
  void* memory_ = nullptr;
};

// Where the operands of a product begin, in elements behind an aligned address.
struct Shifts {
  std::int64_t a = 0, b = 0, bias = 0, c = 0;
};

class Gpu {
 public:
  explicit Gpu(int ordinal = 0) : ordinal_(ordinal) {
    use();
    check_cuda(cudaStreamCreate(&stream_), "cudaStreamCreate");
    check_cuda(cudaMalloc(&workspace_, static_cast<std::size_t>(kWorkspaceBytes)), "cudaMalloc");
  }
  ~Gpu() {
    use();
    device::ignore_cuda(cudaStreamDestroy(stream_));
    device::ignore_cuda(cudaFree(workspace_));
    device::ignore_cuda(cudaSetDevice(0));
  }
  Gpu(const Gpu&) = delete;
  Gpu& operator=(const Gpu&) = delete;

  void use() const { check_cuda(cudaSetDevice(ordinal_), "cudaSetDevice"); }
  ComputeContext context() const {
    return {.workspace = {.data = workspace_, .bytes = kWorkspaceBytes},
            .device = DeviceType::cuda,
            .stream = stream_};
  }
  Tensor multiply(const RandomProduct& product, const Shifts& shifts = {}) const {
    const MatmulShape& s = product.s;
    const std::int64_t in = bytes_of(s.input_type), out = bytes_of(s.output_type);
    const OnGpu a(product.a, shifts.a * in), b(product.b, shifts.b * in), c(product.c, shifts.c * out);
    const OnGpu bias(product.bias, shifts.bias * out);
    matmul(context(), s, a.data(), b.data(), s.bias ? bias.data() : nullptr, c.data());
    check_cuda(cudaStreamSynchronize(stream_), "cudaStreamSynchronize");
    return c.get(product.c);
  }
  void check(const MatmulShape& s, const Shifts& shifts = {}) const {
    const RandomProduct product(s, static_cast<std::uint64_t>(s.m * 31 + s.n * 7 + s.k));
    product.check(multiply(product, shifts), describe(s) + ": " + emulated_cuda::last_refusal());
  }
  cudaStream_t stream() const { return stream_; }

 private:
  static std::string describe(const MatmulShape& s) {
    return std::to_string(s.m) + " x " + std::to_string(s.n) + " x " + std::to_string(s.k) +
           (s.transpose_a ? " A^T" : "") + (s.transpose_b ? " B^T" : "") + (s.bias ? " + bias" : "");
  }

  static constexpr std::int64_t kWorkspaceBytes = cuda::kMatmulWorkspaceBytes;
  int ordinal_;
  cudaStream_t stream_ = nullptr;
  void* workspace_ = nullptr;
};

struct Types {
  DType in, out;
};
constexpr Types kTypes[] = {
    {DType::fp32, DType::fp32}, {DType::bf16, DType::bf16}, {DType::bf16, DType::fp32}};

MatmulShape shape_of(std::array<std::int64_t, 3> extents, unsigned flags, Types types) {
  return {.m = extents[0],
          .n = extents[1],
          .k = extents[2],
          .transpose_a = (flags & 1) != 0,
          .transpose_b = (flags & 2) != 0,
          .input_type = types.in,
          .output_type = types.out,
          .bias = (flags & 4) != 0,
          .alpha = (flags & 8) != 0 ? 0.75f : 1.0f,
          .beta = (flags & 8) != 0 ? 2.0f : 0.0f};
}

TEST(Products, MatchFloat64) {
  const Gpu gpu;
  for (const Types types : kTypes)
    for (const std::array<std::int64_t, 3> extents :
         {std::array<std::int64_t, 3>{1, 1, 1}, {5, 7, 3}, {1, 33, 8}, {33, 65, 17}, {24, 48, 40}})
      for (unsigned flags = 0; flags < 16; ++flags) {
        gpu.check(shape_of(extents, flags, types));
        // Nothing is aligned any more; the bias is copied.
        gpu.check(shape_of(extents, flags, types), {.a = 1, .b = 1, .bias = 1, .c = 1});
      }
}

TEST(Products, OfRowsThatLieApart) {
  const Gpu gpu;
  for (const Types types : kTypes)
    for (unsigned flags = 0; flags < 16; ++flags)
      for (const std::int64_t apart : {0, 3}) {
        MatmulShape s = shape_of({19, 33, 21}, flags, types);
        s.lda = 40 + apart;
        s.ldb = 48 + apart;
        s.ldc = 56 + apart;
        gpu.check(s);
        gpu.check(s, {.a = 2, .b = 4, .bias = 2, .c = 4});
      }
}

// What is prepared for a shape is kept; none that differs in one number may take it.
TEST(Products, AreToldApartByEachNumberOfTheirShape) {
  const Gpu gpu;
  const MatmulShape base = {.m = 12, .n = 12, .k = 12, .lda = 16, .ldb = 16, .ldc = 16};
  const auto changed = [&](const std::function<void(MatmulShape&)>& change) {
    MatmulShape s = base;
    change(s);
    gpu.check(base);
    gpu.check(s);
  };
  changed([](MatmulShape& s) { s.m = 8; });
  changed([](MatmulShape& s) { s.n = 8; });
  changed([](MatmulShape& s) { s.k = 8; });
  changed([](MatmulShape& s) { s.lda = 20; });
  changed([](MatmulShape& s) { s.ldb = 20; });
  changed([](MatmulShape& s) { s.ldc = 20; });
  changed([](MatmulShape& s) { s.ldc = 0; });
  changed([](MatmulShape& s) { s.transpose_a = true; });
  changed([](MatmulShape& s) { s.transpose_b = true; });
  changed([](MatmulShape& s) { s.bias = true; });
  changed([](MatmulShape& s) { s.input_type = DType::bf16; });
  changed([](MatmulShape& s) { s.input_type = s.output_type = DType::bf16; });
  changed([](MatmulShape& s) { s.alpha = 0.5f; });
  changed([](MatmulShape& s) { s.beta = 1.0f; });
}

// Each call has its own places.
TEST(Products, AreRightWhereAlignmentsChangeFromCallToCall) {
  const Gpu gpu;
  for (const Types types : kTypes) {
    const MatmulShape s = shape_of({24, 40, 16}, 4 + 8, types);
    for (const std::int64_t operand : {0, 1, 2, 3})
      for (const std::int64_t shift : {0, 1, 8, 2, 4, 0, 1}) {
        Shifts shifts;
        std::array<std::int64_t*, 4>{&shifts.a, &shifts.b, &shifts.bias,
                                     &shifts.c}[static_cast<std::size_t>(operand)][0] = shift;
        gpu.check(s, shifts);
      }
  }
}

// Calls that are enqueued behind each other, with the same shape and workspace: each has its own bias.
TEST(Products, ReadTheBiasOfTheirCall) {
  const Gpu gpu;
  constexpr std::size_t kCalls = 4;
  for (const std::int64_t shift : {0, 1}) {
    std::vector<RandomProduct> products;
    std::vector<std::unique_ptr<OnGpu>> kept;
    std::array<OnGpu*, kCalls> results;
    for (std::size_t call = 0; call < kCalls; ++call) {
      const RandomProduct& product =
          products.emplace_back(MatmulShape{.m = 3, .n = 9, .k = 5, .bias = true}, std::uint64_t{10} + call);
      const auto on_gpu = [&](const Tensor& tensor, std::int64_t bytes) {
        return kept.emplace_back(std::make_unique<OnGpu>(tensor, bytes)).get();
      };
      OnGpu* const c = results[call] = on_gpu(product.c, 0);
      matmul(gpu.context(), product.s, on_gpu(product.a, 0)->data(), on_gpu(product.b, 0)->data(),
             on_gpu(product.bias, 4 * shift)->data(), c->data());
    }
    check_cuda(cudaStreamSynchronize(gpu.stream()), "cudaStreamSynchronize");
    for (std::size_t call = 0; call < kCalls; ++call)
      products[call].check(results[call]->get(products[call].c), "call " + std::to_string(call));
  }
}

// No algorithm may use atomics on the output.
TEST(Products, HaveTheSameBitsEachTime) {
  const Gpu gpu;
  for (std::int64_t m = 1; m <= 16; ++m) {
    const RandomProduct product({.m = m, .n = 20, .k = 90}, 3);
    const Tensor first = gpu.multiply(product);
    for (int again = 0; again < 4; ++again) EXPECT_TRUE(first == gpu.multiply(product)) << m;
  }
}

TEST(Products, OfAThreadOnSeveralGpus) {
  const Gpu first(0), second(1);
  const RandomProduct product({.m = 7, .n = 12, .k = 5, .bias = true}, 4);
  for (int turn = 0; turn < 2; ++turn)
    for (const Gpu* gpu : {&first, &second}) {
      gpu->use();
      product.check(gpu->multiply(product), "turn " + std::to_string(turn));
    }
}

TEST(Products, OfSeveralThreads) {
  std::vector<std::thread> threads;
  for (std::int64_t which = 0; which < 4; ++which)
    threads.emplace_back([which] {
      try {
        const Gpu gpu(static_cast<int>(which / 2));
        for (std::int64_t shift = 0; shift < 4; ++shift)
          gpu.check({.m = 8 + which, .n = 16, .k = 9, .bias = true}, {.a = shift, .bias = shift});
      } catch (const std::exception& error) {
        ADD_FAILURE() << error.what();
      }
    });
  for (std::thread& thread : threads) thread.join();
}

// In each of the ways in which the library says that it has no algorithm.
TEST(Products, WithoutAnAlgorithmNameTheirShape) {
  const Gpu gpu;
  const OnGpu memory(Tensor(DType::fp32, 4096), 0);
  for (std::int64_t m = 1; m <= 8; ++m) try {
      matmul(gpu.context(), {.m = m, .n = 4, .k = 4}, static_cast<char*>(memory.data()) + 2, memory.data(),
             nullptr, static_cast<char*>(memory.data()) + 8192);
      ADD_FAILURE() << "of fp32 at a multiple of 2 bytes";
    } catch (const UnsupportedError& error) {
      EXPECT_NE(std::string(error.what()).find("no algorithm"), std::string::npos) << error.what();
    }
}

// The leading dim of a single row says nothing, and cuBLASLt looks at it all the same.
TEST(Products, OfOneRowAreAlignedWhateverItsLength) {
  const Gpu gpu;
  emulated_cuda::forget_products();
  for (const Types types : kTypes)
    gpu.check(
        {.m = 1, .n = 257, .k = 64, .transpose_b = true, .input_type = types.in, .output_type = types.out});
  const emulated_cuda::NotedProducts noted = emulated_cuda::noted_products();
  EXPECT_EQ(noted.count, 3);
  EXPECT_GE(noted.least_alignment, 16) << noted.least_aligned;
}

}  // namespace
}  // namespace tessera::kernels::testing
