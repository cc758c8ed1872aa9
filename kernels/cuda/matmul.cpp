// matmul.h over cuBLASLt, which knows columns first: the row-major C = A B is its C^T = B^T A^T, so the two
// operands change places and nothing is transposed.
#include "kernels/matmul.h"

#include <cstddef>
#include <cstdint>
#include <unordered_map>

#include "kernels/check.h"
#include "kernels/cuda/cublas_lt_objects.h"
#include "kernels/cuda/cudnn_attention.h"
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

// What one thread has made so far, per GPU.
struct Cache {
  std::unordered_map<int, OwnedHandle> handles;
  std::unordered_map<MatmulKey, PreparedProduct, HashMatmulKey> entries;
};

OwnedProduct make_product(const MatmulShape& shape) {
  OwnedProduct product = make_product_in_fp32(shape);
  const auto turned = [](bool transpose) { return transpose ? CUBLAS_OP_T : CUBLAS_OP_N; };
  set(product, shape, CUBLASLT_MATMUL_DESC_TRANSA, turned(shape.transpose_b));
  set(product, shape, CUBLASLT_MATMUL_DESC_TRANSB, turned(shape.transpose_a));
  if (shape.bias) set_bias(product, shape, shape.output_type);
  return product;
}

PreparedProduct prepare(cublasLtHandle_t handle, const MatmulShape& s, const MatmulPlace& place) {
  PreparedProduct prepared;
  prepared.product = make_product(s);
  prepared.left =
      make_layout(s, cuda_type_of(s.input_type), s.transpose_b ? s.n : s.k, s.transpose_b ? s.k : s.n, s.ldb);
  prepared.right =
      make_layout(s, cuda_type_of(s.input_type), s.transpose_a ? s.k : s.m, s.transpose_a ? s.m : s.k, s.lda);
  prepared.output = make_layout(s, cuda_type_of(s.output_type), s.m, s.n, s.ldc);
  const OwnedPreference preference =
      make_preference(s, kMatmulWorkspaceBytes - place.bias_copy_bytes, {place.b, place.a, place.c});
  choose_algorithm(handle, s, preference, prepared);
  return prepared;
}

}  // namespace

void open_libraries() {
  int ordinal = 0;
  device::check_cuda(cudaGetDevice(&ordinal), "cudaGetDevice");
  handle_of(kept<Cache>().handles, MatmulShape{}, ordinal);
  open_cudnn(ordinal);
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
  if (found == cache.entries.end()) found = cache.entries.emplace(key, prepare(handle, shape, place)).first;
  const PreparedProduct& entry = found->second;
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
