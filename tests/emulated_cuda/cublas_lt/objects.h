// The objects that cuBLASLt's callers hold pointers to. A pointer is good from the object's creation to its
// destruction; addresses are never given out twice, so whoever uses one too long is always found.
#pragma once

#include <cublasLt.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "tests/emulated_cuda/cublas_lt/refusal.h"

namespace tessera::emulated_cuda::cublas_lt {

struct Handle {
  int gpu;
};

// A matrix as it is stored, columns first.
struct Layout {
  cudaDataType_t type = CUDA_R_32F;
  std::int64_t rows = 0, columns = 0;
  std::int64_t leading = 0;  // elements from one column to the next

  std::int64_t element_bytes() const { return type == CUDA_R_32F ? 4 : type == CUDA_R_16BF ? 2 : 1; }
  std::int64_t bytes() const { return ((columns - 1) * leading + rows) * element_bytes(); }
  bool operator==(const Layout&) const = default;
};

struct Description {
  cublasOperation_t a = CUBLAS_OP_N, b = CUBLAS_OP_N;
  cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  const void* bias = nullptr;
  int bias_type = -1;  // a cudaDataType_t; -1: the type of D
  const void *a_scales = nullptr, *b_scales = nullptr;
  cublasLtMatmulMatrixScale_t a_scale_mode = CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F;
  cublasLtMatmulMatrixScale_t b_scale_mode = CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F;
};

struct Preference {
  std::uint64_t workspace_bytes = 0;
  std::uint32_t reduction_schemes = CUBLASLT_REDUCTION_SCHEME_MASK;
  std::uint32_t a = 256, b = 256, c = 256, d = 256;  // the least alignment in bytes
};

// All objects of one kind. `kPointer` is what callers hold.
template <class Object, class kPointer>
class Registry {
 public:
  explicit Registry(std::string name) : name_(std::move(name)) {}

  kPointer add(Object object) {
    const std::lock_guard lock(mutex_);
    auto owned = std::make_unique<Object>(std::move(object));
    const auto pointer = reinterpret_cast<kPointer>(owned.get());
    live_.emplace(pointer, std::move(owned));
    return pointer;
  }
  // Refuses a pointer that is null, was never given out or was destroyed.
  Object& at(kPointer pointer, cublasStatus_t status = CUBLAS_STATUS_INVALID_VALUE) {
    const std::lock_guard lock(mutex_);
    const auto found = live_.find(pointer);
    require(found != live_.end(), status, "there is no such " + name_ + ", or it was destroyed");
    return *found->second;
  }
  void destroy(kPointer pointer) {
    const std::lock_guard lock(mutex_);
    const auto found = live_.find(pointer);
    if (found == live_.end()) end_process("a " + name_ + " is destroyed that is not there");
    destroyed_.push_back(std::move(found->second));
    live_.erase(found);
  }

 private:
  const std::string name_;
  std::mutex mutex_;  // guards the next
  std::unordered_map<kPointer, std::unique_ptr<Object>> live_;
  std::vector<std::unique_ptr<Object>> destroyed_;  // whose addresses stay taken
};

// Never destroyed: programs end while threads use them.
Registry<Handle, cublasLtHandle_t>& handles();
Registry<Layout, cublasLtMatrixLayout_t>& layouts();
Registry<Description, cublasLtMatmulDesc_t>& descriptions();
Registry<Preference, cublasLtMatmulPreference_t>& preferences();

// The handle's, which must be the one that is current: a handle is for the GPU on which it was made.
int gpu_of(cublasLtHandle_t handle);

}  // namespace tessera::emulated_cuda::cublas_lt
