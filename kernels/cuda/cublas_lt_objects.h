// What products by cuBLASLt share: owned handles, attributes, the choice of an algorithm, and errors that
// name the product. `shape` is a shape that describe() knows.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <type_traits>
#include <unordered_map>

#include "kernels/check.h"
#include "kernels/cuda/cublas_lt.h"
#include "kernels/cuda/matmul_place.h"
#include "src/device/activity.h"
#include "tessera/dtype.h"
#include "tessera/error.h"
#include "tessera/shape.h"

namespace tessera::kernels::cuda {

template <class ProductShape>
void check_cublas_lt(cublasStatus_t status, const ProductShape& shape, const char* call) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  const std::string activity = device::Activity::current();
  throw EnvironmentError((activity.empty() ? "" : activity + ": ") + describe(shape) + ": " + call +
                         " failed: " + cublas_lt().cublasLtGetStatusString(status) + " (" +
                         cublas_lt().cublasLtGetStatusName(status) + ")");
}

// Owns a cuBLASLt handle.
template <class Handle, auto kDestroy>
struct Destroy {
  void operator()(Handle handle) const { (cublas_lt().*kDestroy)(handle); }
};
template <class Handle, auto kDestroy>
using Owned = std::unique_ptr<std::remove_pointer_t<Handle>, Destroy<Handle, kDestroy>>;
using OwnedHandle = Owned<cublasLtHandle_t, &CublasLt::cublasLtDestroy>;
using OwnedProduct = Owned<cublasLtMatmulDesc_t, &CublasLt::cublasLtMatmulDescDestroy>;
using OwnedLayout = Owned<cublasLtMatrixLayout_t, &CublasLt::cublasLtMatrixLayoutDestroy>;
using OwnedPreference = Owned<cublasLtMatmulPreference_t, &CublasLt::cublasLtMatmulPreferenceDestroy>;

// Made when the GPU's is first asked for.
template <class ProductShape>
cublasLtHandle_t handle_of(std::unordered_map<int, OwnedHandle>& handles, const ProductShape& shape,
                           int ordinal) {
  OwnedHandle& owned = handles[ordinal];
  if (!owned) {
    cublasLtHandle_t handle = nullptr;
    check_cublas_lt(cublas_lt().cublasLtCreate(&handle), shape, "cublasLtCreate");
    owned.reset(handle);
  }
  return owned.get();
}

// A stored row-major matrix [rows, columns], `leading` elements between rows, 0 where it is dense: columns
// first, its transpose. cuBLASLt takes slower kernels where rows do not begin aligned. Behind a single row
// there is none, so it is said to begin aligned.
template <class ProductShape>
OwnedLayout make_layout(const ProductShape& shape, cudaDataType_t type, std::int64_t rows,
                        std::int64_t columns, std::int64_t leading) {
  constexpr std::int64_t kAlignedElements = 64;
  if (leading == 0) leading = columns;
  if (rows == 1) leading = round_up(leading, kAlignedElements);
  cublasLtMatrixLayout_t layout = nullptr;
  check_cublas_lt(cublas_lt().cublasLtMatrixLayoutCreate(&layout, type, static_cast<std::uint64_t>(columns),
                                                         static_cast<std::uint64_t>(rows), leading),
                  shape, "cublasLtMatrixLayoutCreate");
  return OwnedLayout(layout);
}

template <class ProductShape>
OwnedProduct make_product_in_fp32(const ProductShape& shape) {
  cublasLtMatmulDesc_t product = nullptr;
  check_cublas_lt(cublas_lt().cublasLtMatmulDescCreate(&product, CUBLAS_COMPUTE_32F, CUDA_R_32F), shape,
                  "cublasLtMatmulDescCreate");
  return OwnedProduct(product);
}

// cuBLASLt's name for fp32 or bf16.
inline cudaDataType_t cuda_type_of(DType type) { return type == DType::fp32 ? CUDA_R_32F : CUDA_R_16BF; }

template <class ProductShape, class Value>
void set(const OwnedProduct& product, const ProductShape& shape, cublasLtMatmulDescAttributes_t attribute,
         const Value& value) {
  check_cublas_lt(cublas_lt().cublasLtMatmulDescSetAttribute(product.get(), attribute, &value, sizeof(value)),
                  shape, "cublasLtMatmulDescSetAttribute");
}

template <class ProductShape, class Value>
void prefer(const OwnedPreference& preference, const ProductShape& shape,
            cublasLtMatmulPreferenceAttributes_t attribute, const Value& value) {
  check_cublas_lt(
      cublas_lt().cublasLtMatmulPreferenceSetAttribute(preference.get(), attribute, &value, sizeof(value)),
      shape, "cublasLtMatmulPreferenceSetAttribute");
}

// The product adds a bias of `type`. The heuristic reads off the pointer how the bias is aligned; a call then
// sets the one it has.
template <class ProductShape>
void set_bias(const OwnedProduct& product, const ProductShape& shape, DType type) {
  set(product, shape, CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
  set(product, shape, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, cuda_type_of(type));
  set(product, shape, CUBLASLT_MATMUL_DESC_BIAS_POINTER, std::uintptr_t{kBiasAlignment});
}

// The bytes that cuBLASLt's A, B and C begin at multiples of.
struct OperandAlignments {
  int a, b, c;
};

template <class ProductShape>
OwnedPreference make_preference(const ProductShape& shape, std::int64_t workspace_bytes,
                                const OperandAlignments& alignments) {
  cublasLtMatmulPreference_t made = nullptr;
  check_cublas_lt(cublas_lt().cublasLtMatmulPreferenceCreate(&made), shape, "cublasLtMatmulPreferenceCreate");
  OwnedPreference preference(made);
  prefer(preference, shape, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
         static_cast<std::uint64_t>(workspace_bytes));
  // A product that is split is added up apart and in order, never by atomics on the output.
  prefer(preference, shape, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
         static_cast<std::uint32_t>(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
  const auto aligned = [&](cublasLtMatmulPreferenceAttributes_t operand, int bytes) {
    prefer(preference, shape, operand, static_cast<std::uint32_t>(bytes));
  };
  aligned(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, alignments.a);
  aligned(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, alignments.b);
  aligned(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, alignments.c);
  aligned(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, alignments.c);
  return preference;
}

// A product, its operands as cuBLASLt sees them (row-major B, A and C), and how it is computed.
struct PreparedProduct {
  OwnedProduct product;
  OwnedLayout left, right, output;
  cublasLtMatmulAlgo_t algorithm{};
};

// The rule: the first result of the heuristic, which is the same for the same shape, library and GPU. Throws
// UnsupportedError where there is none.
template <class ProductShape>
void choose_algorithm(cublasLtHandle_t handle, const ProductShape& shape, const OwnedPreference& preference,
                      PreparedProduct& prepared) {
  cublasLtMatmulHeuristicResult_t found{};
  int count = 0;
  const cublasStatus_t asked = cublas_lt().cublasLtMatmulAlgoGetHeuristic(
      handle, prepared.product.get(), prepared.left.get(), prepared.right.get(), prepared.output.get(),
      prepared.output.get(), preference.get(), 1, &found, &count);
  // It says so by the status, by the count, or by the result's own state.
  const bool none = asked == CUBLAS_STATUS_NOT_SUPPORTED;
  if (!none) check_cublas_lt(asked, shape, "cublasLtMatmulAlgoGetHeuristic");
  if (none || count == 0 || found.state != CUBLAS_STATUS_SUCCESS)
    throw UnsupportedError(describe(shape) + ": cuBLASLt has no algorithm for it on this GPU");
  prepared.algorithm = found.algo;
}

}  // namespace tessera::kernels::cuda
