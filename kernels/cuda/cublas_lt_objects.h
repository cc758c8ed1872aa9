// What products by cuBLASLt share: owned handles, attributes, and errors that name the product. `shape` is a
// shape that describe() knows.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <type_traits>
#include <unordered_map>

#include "kernels/check.h"
#include "kernels/cuda/cublas_lt.h"
#include "src/device/activity.h"
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

template <class ProductShape>
OwnedPreference make_empty_preference(const ProductShape& shape) {
  cublasLtMatmulPreference_t preference = nullptr;
  check_cublas_lt(cublas_lt().cublasLtMatmulPreferenceCreate(&preference), shape,
                  "cublasLtMatmulPreferenceCreate");
  return OwnedPreference(preference);
}

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

}  // namespace tessera::kernels::cuda
