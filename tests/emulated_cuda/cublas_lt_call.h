// A call of the stand-in for cuBLASLt, which tests change in one thing.
#pragma once

#include <cublasLt.h>
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/cuda/cublas_lt.h"
#include "tests/emulated_cuda/gpu_services.h"

namespace tessera::emulated_cuda {

inline const kernels::cuda::CublasLt& lt() { return kernels::cuda::cublas_lt(); }

// D[m, n] = A[m, k] B[k, n] in fp32 on GPU 0, columns first. As it is set up, it is right.
class CublasLt : public ::testing::Test {
 protected:
  static constexpr std::uint64_t kM = 8, kN = 6, kK = 4;
  static constexpr std::size_t kOffered = 1 << 20;  // bytes of workspace

  void SetUp() override {
    cudaSetDevice(0);
    cudaStreamCreate(&stream_);
    cudaMalloc(&memory_, kMemory);
    workspace_ = memory_;
    place_matrices();
    ASSERT_EQ(lt().cublasLtCreate(&handle_), CUBLAS_STATUS_SUCCESS);
    ASSERT_EQ(lt().cublasLtMatmulDescCreate(&product_, CUBLAS_COMPUTE_32F, CUDA_R_32F),
              CUBLAS_STATUS_SUCCESS);
    a_layout_ = layout(CUDA_R_32F, kM, kK, kM);
    b_layout_ = layout(CUDA_R_32F, kK, kN, kK);
    c_layout_ = d_layout_ = layout(CUDA_R_32F, kM, kN, kM);
    ASSERT_EQ(lt().cublasLtMatmulPreferenceCreate(&preference_), CUBLAS_STATUS_SUCCESS);
    prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, std::uint64_t{kOffered});
    prefer(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, std::uint32_t{CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE});
    promise(16);
  }
  void TearDown() override {
    cudaSetDevice(0);
    EXPECT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
    cudaStreamDestroy(stream_);
    cudaFree(memory_);
  }

  void place_matrices() {
    char* const matrices = static_cast<char*>(memory_) + kOffered;
    a_ = matrices;
    b_ = matrices + 4096;
    c_ = d_ = matrices + 8192;
    bias_ = matrices + 12288;
  }
  static cublasLtMatrixLayout_t layout(cudaDataType_t type, std::uint64_t rows, std::uint64_t columns,
                                       std::uint64_t leading) {
    cublasLtMatrixLayout_t made = nullptr;
    EXPECT_EQ(lt().cublasLtMatrixLayoutCreate(&made, type, rows, columns, static_cast<std::int64_t>(leading)),
              CUBLAS_STATUS_SUCCESS);
    return made;
  }
  template <class Value>
  cublasStatus_t try_set(cublasLtMatmulDescAttributes_t attribute, const Value& value) {
    return lt().cublasLtMatmulDescSetAttribute(product_, attribute, &value, sizeof(value));
  }
  template <class Value>
  void set(cublasLtMatmulDescAttributes_t attribute, const Value& value) {
    EXPECT_EQ(try_set(attribute, value), CUBLAS_STATUS_SUCCESS) << last_refusal();
  }
  template <class Value>
  cublasStatus_t try_prefer(cublasLtMatmulPreferenceAttributes_t attribute, const Value& value) {
    return lt().cublasLtMatmulPreferenceSetAttribute(preference_, attribute, &value, sizeof(value));
  }
  template <class Value>
  void prefer(cublasLtMatmulPreferenceAttributes_t attribute, const Value& value) {
    EXPECT_EQ(try_prefer(attribute, value), CUBLAS_STATUS_SUCCESS) << last_refusal();
  }
  void promise(std::uint32_t alignment) {
    for (const auto operand :
         {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
          CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES})
      prefer(operand, alignment);
  }
  void use_bias() {
    set(CUBLASLT_MATMUL_DESC_EPILOGUE, std::uint32_t{CUBLASLT_EPILOGUE_BIAS});
    set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, std::uintptr_t{16});
  }

  cublasStatus_t choose() {
    return lt().cublasLtMatmulAlgoGetHeuristic(handle_, product_, a_layout_, b_layout_, c_layout_, d_layout_,
                                               preference_, 1, &chosen_, &found_);
  }
  cublasStatus_t multiply() {
    return lt().cublasLtMatmul(handle_, product_, alpha_, a_, a_layout_, b_, b_layout_, beta_, c_, c_layout_,
                               d_, d_layout_, &chosen_.algo, workspace_, workspace_bytes_, stream_);
  }
  void expect_right() {
    ASSERT_EQ(choose(), CUBLAS_STATUS_SUCCESS) << last_refusal();
    ASSERT_EQ(found_, 1);
    ASSERT_EQ(multiply(), CUBLAS_STATUS_SUCCESS) << last_refusal();
  }
  static void expect_refused(cublasStatus_t status, const std::string& words,
                             cublasStatus_t expected = CUBLAS_STATUS_INVALID_VALUE) {
    EXPECT_EQ(status, expected) << words;
    EXPECT_NE(last_refusal().find(words), std::string::npos)
        << "of \"" << words << "\" it says \"" << last_refusal() << '"';
  }

  void write(void* to, const std::vector<float>& values) {
    ASSERT_EQ(cudaMemcpy(to, values.data(), values.size() * sizeof(float), cudaMemcpyHostToDevice),
              cudaSuccess);
  }
  std::vector<float> read(const void* from, std::size_t count) {
    EXPECT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
    std::vector<float> values(count);
    EXPECT_EQ(cudaMemcpy(values.data(), from, count * sizeof(float), cudaMemcpyDeviceToHost), cudaSuccess);
    return values;
  }

  static constexpr std::size_t kMemory = 2 << 20;
  const float one_ = 1, zero_ = 0;
  cudaStream_t stream_ = nullptr;
  void* memory_ = nullptr;
  char *a_ = nullptr, *b_ = nullptr, *c_ = nullptr, *d_ = nullptr, *bias_ = nullptr;
  const float *alpha_ = &one_, *beta_ = &zero_;
  void* workspace_ = nullptr;
  std::size_t workspace_bytes_ = kOffered;
  cublasLtHandle_t handle_ = nullptr;
  cublasLtMatmulDesc_t product_ = nullptr;
  cublasLtMatrixLayout_t a_layout_ = nullptr, b_layout_ = nullptr, c_layout_ = nullptr, d_layout_ = nullptr;
  cublasLtMatmulPreference_t preference_ = nullptr;
  cublasLtMatmulHeuristicResult_t chosen_{};
  int found_ = 0;
};

}  // namespace tessera::emulated_cuda
