// cuBLASLt, loaded when the first product on CUDA asks for it: linked, its relocations would take some 90 MiB
// of every process, also of those that never see a GPU.
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

// EnvironmentError naming the file where it cannot be loaded. It stays for good.
const CublasLt& cublas_lt();

}  // namespace tessera::kernels::cuda
