// matmul_fp8.h over cuBLASLt. It wants both operands with the dim that is summed over first ("TN"), which
// row-major A [m,k] and B [n,k] have: as matmul.cpp says, they change places, so that B is cuBLASLt's A.
#include "kernels/matmul_fp8.h"

#include <cstddef>
#include <cstdint>
#include <string>
#include <unordered_map>

#include "kernels/check.h"
#include "kernels/check_fp8.h"
#include "kernels/cuda/cublas_lt_objects.h"
#include "kernels/cuda/kept.h"
#include "kernels/cuda/matmul_place.h"
#include "kernels/cuda/scale_bytes.h"
#include "kernels/matmul_key.h"
#include "kernels/ops.h"
#include "src/device/cuda_check.h"

namespace tessera::kernels::cuda {
namespace {

// How the GPU takes scales.
enum class Scales : std::uint8_t {
  fp32,  // a number for each tile of 128, of compute capability 9
  bytes  // see scale_bytes.h, from 10 on
};

// What one thread has made so far, per GPU.
struct Cache {
  std::unordered_map<int, OwnedHandle> handles;
  std::unordered_map<int, Scales> scales;
  std::unordered_map<MatmulKey, PreparedProduct, HashMatmulKey> entries;
};

MatmulKey key_of(const MatmulFp8Shape& s, int ordinal, int alignment) {
  const std::int64_t flags = s.bias | (s.beta != 0.0f) << 1 | static_cast<std::int64_t>(s.b_tiles) << 2 |
                             static_cast<std::int64_t>(s.output_type) << 4 | std::int64_t{alignment} << 8 |
                             std::int64_t{ordinal} << 32;
  return {{s.m, s.n, s.k, s.ldc, flags}};
}

Scales scales_of(Cache& cache, const MatmulFp8Shape& shape, int ordinal) {
  const auto found = cache.scales.find(ordinal);
  if (found != cache.scales.end()) return found->second;
  int major = 0, minor = 0;
  device::check_cuda(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, ordinal),
                     "cudaDeviceGetAttribute");
  device::check_cuda(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, ordinal),
                     "cudaDeviceGetAttribute");
  if (major < 9)
    throw UnsupportedError(describe(shape) + ": this GPU has compute capability " + std::to_string(major) +
                           "." + std::to_string(minor) + "; fp8 by blocks needs 9.0 or later (Hopper)");
  return cache.scales[ordinal] = major == 9 ? Scales::fp32 : Scales::bytes;
}

QuantizeShape a_of(const MatmulFp8Shape& s) { return {.rows = s.m, .columns = s.k}; }
QuantizeShape b_of(const MatmulFp8Shape& s) { return {.rows = s.n, .columns = s.k, .tiles = s.b_tiles}; }

std::int64_t words_bytes(const QuantizeShape& s) {
  return round_up(scale_words(s) * static_cast<std::int64_t>(sizeof(std::uint32_t)), kWorkspaceAlignment);
}

// The workspace is planned for any GPU: for the bytes of scales, too.
std::int64_t all_words_bytes(const MatmulFp8Shape& s) { return words_bytes(a_of(s)) + words_bytes(b_of(s)); }

cublasLtMatmulMatrixScale_t mode_of(Scales scales, Fp8Tiles tiles) {
  if (scales == Scales::bytes) return CUBLASLT_MATMUL_MATRIX_SCALE_VEC32_UE8M0;
  return tiles == Fp8Tiles::blocks ? CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F
                                   : CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F;
}

// Sums are promoted to fp32: fast accumulation is off unless it is asked for.
OwnedProduct make_product(const MatmulFp8Shape& s, Scales scales) {
  OwnedProduct product = make_product_in_fp32(s);
  set(product, s, CUBLASLT_MATMUL_DESC_TRANSA, CUBLAS_OP_T);
  set(product, s, CUBLASLT_MATMUL_DESC_TRANSB, CUBLAS_OP_N);
  set(product, s, CUBLASLT_MATMUL_DESC_A_SCALE_MODE, mode_of(scales, s.b_tiles));
  set(product, s, CUBLASLT_MATMUL_DESC_B_SCALE_MODE, mode_of(scales, Fp8Tiles::vectors));
  if (s.bias) set_bias(product, s, DType::bf16);
  return product;
}

// The scales of one call. A product is told them before each.
struct ScalePointers {
  const void *a, *b;
};

void point_to(const OwnedProduct& product, const MatmulFp8Shape& s, const ScalePointers& scales) {
  set(product, s, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, scales.b);
  set(product, s, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, scales.a);
}

// Scales as the GPU takes them.
ScalePointers made_scales(const ComputeContext& context, const MatmulFp8Shape& s, Scales scales,
                          const Fp8Matrix& a, const Fp8Matrix& b) {
  if (scales == Scales::fp32) return {a.scales, b.scales};
  auto* const of_a = static_cast<std::uint32_t*>(context.workspace.data);
  auto* const of_b = offset_bytes<std::uint32_t>(of_a, words_bytes(a_of(s)));
  write_scale_bytes(context, a_of(s), a.scales, of_a);
  write_scale_bytes(context, b_of(s), b.scales, of_b);
  return {of_a, of_b};
}

// `pointers`: the heuristic wants some.
PreparedProduct prepare(cublasLtHandle_t handle, const MatmulFp8Shape& s, Scales scales,
                        const ScalePointers& pointers, int alignment) {
  PreparedProduct prepared;
  prepared.product = make_product(s, scales);
  point_to(prepared.product, s, pointers);
  prepared.left = make_layout(s, CUDA_R_8F_E4M3, s.n, s.k, 0);
  prepared.right = make_layout(s, CUDA_R_8F_E4M3, s.m, s.k, 0);
  prepared.output = make_layout(s, cuda_type_of(s.output_type), s.m, s.n, s.ldc);
  const OwnedPreference preference =
      make_preference(s, kMatmulWorkspaceBytes, {kVectorBytes, kVectorBytes, alignment});
  choose_algorithm(handle, s, preference, prepared);
  return prepared;
}

}  // namespace

std::int64_t matmul_fp8_workspace_bytes(const MatmulFp8Shape& shape, const Target& /*target*/) {
  return kMatmulWorkspaceBytes + all_words_bytes(shape);
}

void matmul_fp8(const ComputeContext& context, const MatmulFp8Shape& s, const Fp8Matrix& a,
                const Fp8Matrix& b, const void* bias, void* c) {
  check_workspace(context, cuda::matmul_fp8_workspace_bytes(s, context.target()), "matmul_fp8");
  if (!is_aligned(kVectorBytes, {{a.values, 1}, {b.values, 1}, {a.scales, 1}, {b.scales, 1}, {bias, 1}}))
    throw UsageError(describe(s) + ": on CUDA operands, scales and bias begin at multiples of " +
                     std::to_string(kVectorBytes) + " bytes");
  int ordinal = 0;
  device::check_cuda(cudaGetDevice(&ordinal), "cudaGetDevice");
  Cache& cache = kept<Cache>();
  const Scales scales = scales_of(cache, s, ordinal);
  const ScalePointers pointers = made_scales(context, s, scales, a, b);
  cublasLtHandle_t handle = handle_of(cache.handles, s, ordinal);
  const int alignment = alignment_of(c);
  const MatmulKey key = key_of(s, ordinal, alignment);
  auto found = cache.entries.find(key);
  if (found == cache.entries.end())
    found = cache.entries.emplace(key, prepare(handle, s, scales, pointers, alignment)).first;
  const PreparedProduct& entry = found->second;
  point_to(entry.product, s, pointers);
  if (s.bias) set(entry.product, s, CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias);
  const float alpha = 1.0f;
  check_cublas_lt(cublas_lt().cublasLtMatmul(handle, entry.product.get(), &alpha, b.values, entry.left.get(),
                                             a.values, entry.right.get(), &s.beta, c, entry.output.get(), c,
                                             entry.output.get(), &entry.algorithm,
                                             offset_bytes<void>(context.workspace.data, all_words_bytes(s)),
                                             static_cast<std::size_t>(kMatmulWorkspaceBytes),
                                             static_cast<cudaStream_t>(context.stream)),
                  s, "cublasLtMatmul");
}

}  // namespace tessera::kernels::cuda
