// matmul.h over cuBLASLt, which knows columns first: the row-major C = A B is its C^T = B^T A^T, so the two
// operands change places and nothing is transposed.
#include "kernels/matmul.h"

#include <cstddef>
#include <cstdint>
#include <unordered_map>

#include "kernels/check.h"
#include "kernels/cuda/cublas_lt_objects.h"
#include "kernels/cuda/kept.h"
#include "kernels/cuda/matmul_place.h"
#include "kernels/libraries.h"
#include "kernels/matmul_key.h"
#include "kernels/ops.h"
#include "src/device/cuda_check.h"

namespace tessera::kernels::cuda {
namespace {

MatmulKey key_of(const MatmulShape& s, int ordinal, const MatmulPlace& place) {
  const std::int64_t flags = s.transpose_a | s.transpose_b << 1 | s.bias << 2 | (s.beta != 0.0f) << 3 |
                             static_cast<std::int64_t>(s.input_type) << 4 |
                             static_cast<std::int64_t>(s.output_type) << 8 | std::int64_t{place.a} << 16 |
                             std::int64_t{place.b} << 21 | std::int64_t{place.c} << 26 |
                             std::int64_t{place.bias_copy_bytes > 0} << 31 | std::int64_t{ordinal} << 32;
  return {{s.m, s.n, s.k, s.lda, s.ldb, s.ldc, flags}};
}

struct Entry {
  OwnedProduct product;
  OwnedLayout left, right, output;  // as cuBLASLt sees them: B, A and C
  cublasLtMatmulAlgo_t algorithm{};
};

// What one thread has made so far, per GPU.
struct Cache {
  std::unordered_map<int, OwnedHandle> handles;
  std::unordered_map<MatmulKey, Entry, HashMatmulKey> entries;
};

cudaDataType_t type_of(DType type) { return type == DType::fp32 ? CUDA_R_32F : CUDA_R_16BF; }

OwnedProduct make_product(const MatmulShape& shape) {
  OwnedProduct product = make_product_in_fp32(shape);
  const auto turned = [](bool transpose) { return transpose ? CUBLAS_OP_T : CUBLAS_OP_N; };
  set(product, shape, CUBLASLT_MATMUL_DESC_TRANSA, turned(shape.transpose_b));
  set(product, shape, CUBLASLT_MATMUL_DESC_TRANSB, turned(shape.transpose_a));
  if (shape.bias) {
    set(product, shape, CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
    set(product, shape, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, type_of(shape.output_type));
    // The heuristic reads off the pointer how the bias is aligned; a call then sets the one it has.
    set(product, shape, CUBLASLT_MATMUL_DESC_BIAS_POINTER, std::uintptr_t{kBiasAlignment});
  }
  return product;
}

OwnedPreference make_preference(const MatmulShape& shape, const MatmulPlace& place) {
  OwnedPreference preference = make_empty_preference(shape);
  prefer(preference, shape, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
         static_cast<std::uint64_t>(kMatmulWorkspaceBytes - place.bias_copy_bytes));
  // A product that is split is added up apart and in order, never by atomics on the output.
  prefer(preference, shape, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
         static_cast<std::uint32_t>(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
  const auto aligned = [&](cublasLtMatmulPreferenceAttributes_t operand, int bytes) {
    prefer(preference, shape, operand, static_cast<std::uint32_t>(bytes));
  };
  aligned(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, place.b);  // the operands change places
  aligned(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, place.a);
  aligned(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, place.c);
  aligned(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, place.c);
  return preference;
}

// The rule: the first result of the heuristic, which is the same for the same shape, library and GPU.
Entry make_entry(cublasLtHandle_t handle, const MatmulShape& s, const MatmulPlace& place) {
  Entry entry;
  entry.product = make_product(s);
  entry.left =
      make_layout(s, type_of(s.input_type), s.transpose_b ? s.n : s.k, s.transpose_b ? s.k : s.n, s.ldb);
  entry.right =
      make_layout(s, type_of(s.input_type), s.transpose_a ? s.k : s.m, s.transpose_a ? s.m : s.k, s.lda);
  entry.output = make_layout(s, type_of(s.output_type), s.m, s.n, s.ldc);
  const OwnedPreference preference = make_preference(s, place);
  cublasLtMatmulHeuristicResult_t found{};
  int count = 0;
  const cublasStatus_t asked = cublas_lt().cublasLtMatmulAlgoGetHeuristic(
      handle, entry.product.get(), entry.left.get(), entry.right.get(), entry.output.get(),
      entry.output.get(), preference.get(), 1, &found, &count);
  // It says so by the status, by the count, or by the result's own state.
  const bool none = asked == CUBLAS_STATUS_NOT_SUPPORTED;
  if (!none) check_cublas_lt(asked, s, "cublasLtMatmulAlgoGetHeuristic");
  if (none || count == 0 || found.state != CUBLAS_STATUS_SUCCESS)
    throw UnsupportedError(describe(s) + ": cuBLASLt has no algorithm for it on this GPU");
  entry.algorithm = found.algo;
  return entry;
}

}  // namespace

void open_libraries() {
  int ordinal = 0;
  device::check_cuda(cudaGetDevice(&ordinal), "cudaGetDevice");
  handle_of(kept<Cache>().handles, MatmulShape{}, ordinal);
}

std::int64_t matmul_workspace_bytes(const MatmulShape& shape, const Target& /*target*/) {
  check_matmul(shape);
  return kMatmulWorkspaceBytes;
}

void matmul(const ComputeContext& context, const MatmulShape& shape, const void* a, const void* b,
            const void* bias, void* c) {
  check_workspace(context, cuda::matmul_workspace_bytes(shape, context.target()), "matmul");
  check_bias(shape, bias);
  int ordinal = 0;
  device::check_cuda(cudaGetDevice(&ordinal), "cudaGetDevice");
  Cache& cache = kept<Cache>();
  cublasLtHandle_t handle = handle_of(cache.handles, shape, ordinal);
  const MatmulPlace place = place_of(shape, a, b, bias, c);
  const MatmulKey key = key_of(shape, ordinal, place);
  auto found = cache.entries.find(key);
  if (found == cache.entries.end())
    found = cache.entries.emplace(key, make_entry(handle, shape, place)).first;
  const Entry& entry = found->second;
  char* const workspace = static_cast<char*>(context.workspace.data);
  if (place.bias_copy_bytes > 0) {
    cuda::copy_bytes(context, shape.n * bytes_of(shape.output_type), bias, workspace);
    bias = workspace;
  }
  if (shape.bias) set(entry.product, shape, CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias);
  check_cublas_lt(
      cublas_lt().cublasLtMatmul(handle, entry.product.get(), &shape.alpha, b, entry.left.get(), a,
                                 entry.right.get(), &shape.beta, c, entry.output.get(), c, entry.output.get(),
                                 &entry.algorithm, workspace + place.bias_copy_bytes,
                                 static_cast<std::size_t>(kMatmulWorkspaceBytes - place.bias_copy_bytes),
                                 static_cast<cudaStream_t>(context.stream)),
      shape, "cublasLtMatmul");
}

}  // namespace tessera::kernels::cuda
