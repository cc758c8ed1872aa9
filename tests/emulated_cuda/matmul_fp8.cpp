// Stands in for kernels/cuda/matmul_fp8.cpp, which is cuBLASLt's: sums in float64, rounded once.
#include "kernels/matmul_fp8.h"

#include "kernels/check.h"
#include "kernels/check_fp8.h"
#include "kernels/cuda/launch_options.cuh"
#include "kernels/ops.h"
#include "tests/emulated_cuda/emulator.h"
#include "tests/emulated_cuda/stream_work.h"

namespace tessera::kernels::cuda {
namespace {

double at(const Fp8Matrix& matrix, const QuantizeShape& shape, std::int64_t row, std::int64_t column) {
  const auto* const values = static_cast<const E4m3*>(matrix.values);
  return static_cast<double>(to_float(values[row * shape.columns + column])) *
         static_cast<double>(matrix.scales[shape.scale_at(row, column)]);
}

void multiply(int gpu, const MatmulFp8Shape& s, const Fp8Matrix& a, const Fp8Matrix& b, const Bf16* bias,
              void* c) {
  const emulated_cuda::Access access(gpu);
  const QuantizeShape left = {.rows = s.m, .columns = s.k};
  const QuantizeShape right = {.rows = s.n, .columns = s.k, .tiles = s.b_tiles};
  for (std::int64_t i = 0; i < s.m; ++i)
    for (std::int64_t j = 0; j < s.n; ++j) {
      const std::int64_t to = i * (s.ldc == 0 ? s.n : s.ldc) + j;
      double sum = 0;
      for (std::int64_t k = 0; k < s.k; ++k) sum += at(a, left, i, k) * at(b, right, j, k);
      if (bias != nullptr) sum += static_cast<double>(to_float(bias[j]));
      const auto finish = [&](auto* result) {
        using T = std::remove_reference_t<decltype(*result)>;
        if (s.beta != 0) sum += static_cast<double>(s.beta) * static_cast<double>(to_float(*result));
        *result = from_float<T>(static_cast<float>(sum));
      };
      if (s.output_type == DType::fp32)
        finish(static_cast<float*>(c) + to);
      else
        finish(static_cast<Bf16*>(c) + to);
    }
}

}  // namespace

std::int64_t matmul_fp8_workspace_bytes(const MatmulFp8Shape&, const Target&) { return 1024; }

void matmul_fp8(const ComputeContext& context, const MatmulFp8Shape& s, const Fp8Matrix& a,
                const Fp8Matrix& b, const void* bias, void* c) {
  check_workspace(context, 1024, "matmul_fp8");
  const auto work = emulated_cuda::work_of(stream_of(context));
  work->give([=, gpu = work->ordinal()] { multiply(gpu, s, a, b, static_cast<const Bf16*>(bias), c); });
}

}  // namespace tessera::kernels::cuda
