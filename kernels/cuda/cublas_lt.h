// cuBLASLt, loaded when the first matrix product on CUDA needs it. If it were linked, its relocations would
// take about 90 MiB in every process, also in those that never use a GPU.
#pragma once

#include <cublasLt.h>

namespace tessera::kernels::cuda {

// clang-format off
#define TESSERA_FOR_EACH_CUBLAS_LT(function) \
  function(cublasLtCreate) function(cublasLtDestroy) \
  function(cublasLtGetStatusName) function(cublasLtGetStatusString) \
  function(cublasLtMatmulDescCreate) function(cublasLtMatmulDescDestroy) function(cublasLtMatmulDescSetAttribute) \
  function(cublasLtMatrixLayoutCreate) function(cublasLtMatrixLayoutDestroy) \
  function(cublasLtMatmulPreferenceCreate) function(cublasLtMatmulPreferenceDestroy) \
  function(cublasLtMatmulPreferenceSetAttribute) \
  function(cublasLtMatmulAlgoGetHeuristic) function(cublasLtMatmul)
// clang-format on

struct CublasLt {
#define TESSERA_CUBLAS_LT_MEMBER(function) decltype(&::function) function;
  TESSERA_FOR_EACH_CUBLAS_LT(TESSERA_CUBLAS_LT_MEMBER)
#undef TESSERA_CUBLAS_LT_MEMBER
};

// The library's functions; it stays loaded. Throws EnvironmentError naming the file if it cannot be loaded.
const CublasLt& cublas_lt();

}  // namespace tessera::kernels::cuda
