// What the stand-in for cuBLASLt refuses, because the real one does or because a caller could not know that
// it works.
#include <array>
#include <functional>
#include <utility>

#include "tests/emulated_cuda/cublas_lt_call.h"

namespace tessera::emulated_cuda {
namespace {

TEST_F(CublasLt, RefusesObjectsThatAreNotThere) {
  expect_right();
  const auto expect_both_refused = [&](const std::string& words,
                                       cublasStatus_t status = CUBLAS_STATUS_INVALID_VALUE) {
    expect_refused(choose(), words, status);
    expect_refused(multiply(), words, status);
  };
  const auto right_handle = std::exchange(handle_, nullptr);
  expect_both_refused("no such handle", CUBLAS_STATUS_NOT_INITIALIZED);
  handle_ = reinterpret_cast<cublasLtHandle_t>(a_layout_);
  expect_both_refused("no such handle", CUBLAS_STATUS_NOT_INITIALIZED);
  handle_ = right_handle;
  const auto right_layout = std::exchange(a_layout_, nullptr);
  expect_both_refused("no such matrix layout");
  a_layout_ = layout(CUDA_R_32F, kM, kK, kM);
  lt().cublasLtMatrixLayoutDestroy(a_layout_);
  expect_both_refused("no such matrix layout");
  a_layout_ = right_layout;
  lt().cublasLtMatmulPreferenceDestroy(preference_);
  expect_refused(choose(), "no such preference");
  lt().cublasLtMatmulDescDestroy(product_);
  expect_both_refused("no such description");
  expect_refused(try_set(CUBLASLT_MATMUL_DESC_TRANSA, std::int32_t{CUBLAS_OP_T}), "no such description");
  lt().cublasLtDestroy(handle_);
  expect_both_refused("no such handle", CUBLAS_STATUS_NOT_INITIALIZED);
}

TEST_F(CublasLt, EndsTheProcessWhereAnObjectIsDestroyedTwice) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  lt().cublasLtMatrixLayoutDestroy(a_layout_);
  EXPECT_DEATH(lt().cublasLtMatrixLayoutDestroy(a_layout_), "destroyed that is not there");
  EXPECT_DEATH(lt().cublasLtDestroy(nullptr), "destroyed that is not there");
}

TEST_F(CublasLt, RefusesAttributesOfAnotherSizeOrThatItDoesNotKnow) {
  expect_refused(try_set(CUBLASLT_MATMUL_DESC_TRANSA, std::int64_t{1}), "has 4 bytes, not 8");
  expect_refused(try_set(CUBLASLT_MATMUL_DESC_EPILOGUE, std::uint64_t{4}), "has 4 bytes, not 8");
  expect_refused(try_set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, std::uint32_t{16}), "has 8 bytes, not 4");
  expect_refused(try_set(static_cast<cublasLtMatmulDescAttributes_t>(30), 1), "no attribute 30");
  expect_refused(try_set(CUBLASLT_MATMUL_DESC_TRANSA, 2), "no operation 2");
  expect_refused(try_set(CUBLASLT_MATMUL_DESC_EPILOGUE, std::uint32_t{2}), "no epilogue 2");
  expect_refused(try_set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, 1), "no type 1");
  expect_refused(lt().cublasLtMatmulDescSetAttribute(product_, CUBLASLT_MATMUL_DESC_TRANSA, nullptr, 4),
                 "value is null");
  expect_refused(try_prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, 1), "has 8 bytes, not 4");
  expect_refused(try_prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, std::uint64_t{16}), "has 4 bytes");
  expect_refused(try_prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, std::uint32_t{24}), "power of two");
  expect_refused(try_prefer(static_cast<cublasLtMatmulPreferenceAttributes_t>(12), 1), "no attribute 12");
  cublasLtMatmulDesc_t description = nullptr;
  expect_refused(lt().cublasLtMatmulDescCreate(&description, CUBLAS_COMPUTE_32F, CUDA_R_16BF),
                 "computes in fp32");
  cublasLtMatrixLayout_t made = nullptr;
  expect_refused(lt().cublasLtMatrixLayoutCreate(&made, CUDA_R_32F, 0, 4, 4), "not 0 x 4");
}

TEST_F(CublasLt, RefusesShapesAndTypesThatDoNotGoTogether) {
  const auto with = [&](cublasLtMatrixLayout_t& place, cublasLtMatrixLayout_t other, const std::string& words,
                        cublasStatus_t status = CUBLAS_STATUS_INVALID_VALUE) {
    const cublasLtMatrixLayout_t right = std::exchange(place, other);
    expect_refused(choose(), words, status);
    place = right;
  };
  with(a_layout_, layout(CUDA_R_32F, kM, kK, kM - 1), "A: the leading dim 7 is shorter");
  with(b_layout_, layout(CUDA_R_32F, kK, kN, kK - 1), "B: the leading dim");
  with(d_layout_, layout(CUDA_R_32F, kM, kN, kM - 1), "D: the leading dim");
  with(a_layout_, layout(CUDA_R_32F, kK, kM, kK), "do not go together");
  with(b_layout_, layout(CUDA_R_32F, kK + 1, kN, kK + 1), "do not go together");
  with(c_layout_, layout(CUDA_R_32F, kM, kN + 1, kM), "do not go together");
  with(a_layout_, layout(CUDA_R_16BF, kM, kK, kM), "types do not go together", CUBLAS_STATUS_NOT_SUPPORTED);
  with(d_layout_, layout(CUDA_R_16BF, kM, kN, kM), "types do not go together", CUBLAS_STATUS_NOT_SUPPORTED);
  use_bias();
  set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, std::int32_t{CUDA_R_16BF});
  expect_refused(choose(), "bias has not the type that goes with D", CUBLAS_STATUS_NOT_SUPPORTED);
}

// Asks the heuristic for GPU 1, which takes fp8: a Hopper, or what EMULATED_CUDA_ARCHITECTURE says beyond.
TEST_F(CublasLt, RefusesInFp8WhatTheRealOneDoes) {
  cudaSetDevice(1);
  const bool hopper = emulated_gpu_services()->compute_capability(1) == 90;
  const std::int32_t by_32 = CUBLASLT_MATMUL_MATRIX_SCALE_VEC32_UE8M0,
                     by_128 = CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F,
                     by_squares = CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F,
                     right = hopper ? by_128 : by_32;
  const auto refused = [&](const std::string& words) {
    expect_refused(choose(), words, CUBLAS_STATUS_NOT_SUPPORTED);
  };
  const auto scales = [&](std::int32_t a, std::int32_t b) {
    set(CUBLASLT_MATMUL_DESC_A_SCALE_MODE, a);
    set(CUBLASLT_MATMUL_DESC_B_SCALE_MODE, b);
  };
  ASSERT_EQ(lt().cublasLtCreate(&handle_), CUBLAS_STATUS_SUCCESS);
  scales(right, right);
  refused("scales are fp8's");
  a_layout_ = layout(CUDA_R_8F_E4M3, 48, 32, 48);
  b_layout_ = layout(CUDA_R_8F_E4M3, 48, 16, 48);
  c_layout_ = d_layout_ = layout(CUDA_R_16BF, 32, 16, 32);
  set(CUBLASLT_MATMUL_DESC_TRANSA, std::int32_t{CUBLAS_OP_T});
  ASSERT_EQ(choose(), CUBLAS_STATUS_SUCCESS) << last_refusal();
  scales(CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F, CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F);
  refused("modes of scales do not go together");
  scales(by_128, by_32);
  refused("modes of scales do not go together");
  scales(by_squares, by_squares);
  refused("modes of scales do not go together");
  scales(hopper ? by_32 : by_128, hopper ? by_32 : by_128);
  refused("does not take such scales");
  scales(right, right);
  set(CUBLASLT_MATMUL_DESC_TRANSA, std::int32_t{CUBLAS_OP_N});
  a_layout_ = layout(CUDA_R_8F_E4M3, 32, 48, 32);
  refused("in fp8 A is transposed");
  set(CUBLASLT_MATMUL_DESC_TRANSA, std::int32_t{CUBLAS_OP_T});
  a_layout_ = layout(CUDA_R_8F_E4M3, 48, 32, 56);
  refused("a multiple of 16, not 56");
  a_layout_ = layout(CUDA_R_8F_E4M3, 48, 32, 48);
  c_layout_ = d_layout_ = layout(CUDA_R_8F_E4M3, 32, 16, 32);
  refused("types do not go together");
  c_layout_ = d_layout_ = layout(CUDA_R_32F, 32, 16, 32);
  use_bias();
  refused("bias has not the type that goes with D");
  set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, std::int32_t{CUDA_R_16BF});
  EXPECT_EQ(choose(), CUBLAS_STATUS_SUCCESS) << last_refusal();
  expect_refused(try_set(CUBLASLT_MATMUL_DESC_A_SCALE_MODE, std::int32_t{3}), "no mode 3 of scales");
  promise(8);
  const cublasStatus_t asked = choose();
  EXPECT_TRUE(asked != CUBLAS_STATUS_SUCCESS || found_ == 0 || chosen_.state != CUBLAS_STATUS_SUCCESS);
}

TEST_F(CublasLt, RefusesAlgorithmsOfOtherProducts) {
  expect_right();
  const cublasLtMatmulAlgo_t right = chosen_.algo;
  chosen_.algo = {};
  expect_refused(multiply(), "none of the heuristic's");
  chosen_.algo = right;
  ++chosen_.algo.data[1];
  expect_refused(multiply(), "none of the heuristic's");
  chosen_.algo = right;
  expect_refused(
      lt().cublasLtMatmul(handle_, product_, alpha_, a_, a_layout_, b_, b_layout_, beta_, c_, c_layout_, d_,
                          d_layout_, nullptr, workspace_, workspace_bytes_, stream_),
      "no algorithm");
  const auto expect_another = [&](const std::function<void()>& change) {
    change();
    expect_refused(multiply(), "the algorithm was found for");
  };
  const auto a_right = a_layout_, b_right = b_layout_;
  expect_another([&] { a_layout_ = layout(CUDA_R_32F, kM, kK, kM + 4); });  // another leading dim
  expect_another([&] {                                                      // more to sum
    a_layout_ = layout(CUDA_R_32F, kM, kK + 1, kM);
    b_layout_ = layout(CUDA_R_32F, kK + 1, kN, kK + 1);
  });
  expect_another([&] {
    a_layout_ = layout(CUDA_R_16BF, kM, kK, kM);
    b_layout_ = layout(CUDA_R_16BF, kK, kN, kK);
  });
  expect_another([&] {
    a_layout_ = layout(CUDA_R_32F, kK, kM, kM);
    b_layout_ = b_right;
    set(CUBLASLT_MATMUL_DESC_TRANSA, std::int32_t{CUBLAS_OP_T});
  });
  a_layout_ = a_right;
  set(CUBLASLT_MATMUL_DESC_TRANSA, std::int32_t{CUBLAS_OP_N});
  EXPECT_EQ(multiply(), CUBLAS_STATUS_SUCCESS) << last_refusal();
  expect_another([&] { use_bias(); });
}

TEST_F(CublasLt, RefusesOperandsThatLieWhereItWasNotPromised) {
  expect_right();
  for (char** const operand : {&a_, &b_, &c_}) {
    *operand += 8;
    if (operand == &c_) d_ = c_;
    expect_refused(multiply(), "promised an alignment of 16");
    *operand -= 8;
  }
  d_ = c_;
  promise(8);
  a_ += 8;
  expect_refused(multiply(), "promised an alignment of 16");
  expect_right();
  a_ = nullptr;
  expect_refused(multiply(), "A is null");
}

TEST_F(CublasLt, HasAlignmentsOfAWholeVectorWhereNoneAreSaid) {
  lt().cublasLtMatmulPreferenceCreate(&preference_);
  expect_right();
  a_ += 128;
  expect_refused(multiply(), "promised an alignment of 256");
}

TEST_F(CublasLt, RefusesMatricesThatOverlap) {
  expect_right();
  d_ = c_ = a_;
  expect_refused(multiply(), "D overlaps A or B");
  d_ = c_ = b_ + 16;
  expect_refused(multiply(), "D overlaps A or B");
  place_matrices();
  c_ = d_ + 16;
  expect_refused(multiply(), "C is D in place");
  place_matrices();
  c_layout_ = layout(CUDA_R_32F, kM, kN, kM + 4);
  ASSERT_EQ(choose(), CUBLAS_STATUS_SUCCESS);
  expect_refused(multiply(), "C is D in place");
  // Columns of both in turn.
  a_layout_ = layout(CUDA_R_32F, kM, kK, 4 * kM);
  c_layout_ = d_layout_ = layout(CUDA_R_32F, kM, kN, 4 * kM);
  d_ = c_ = a_ + 4 * kM;
  b_ = bias_;
  expect_right();
  d_ = c_ = a_ + 4 * kM - 16;
  expect_refused(multiply(), "D overlaps A or B");
}

TEST_F(CublasLt, RefusesAWorkspaceThatAnAlgorithmCannotUse) {
  for (std::uint64_t columns = 1; chosen_.workspaceSize == 0; ++columns) {  // one that needs some
    b_layout_ = layout(CUDA_R_32F, kK, columns, kK);
    c_layout_ = d_layout_ = layout(CUDA_R_32F, kM, columns, kM);
    expect_right();
  }
  workspace_bytes_ = chosen_.workspaceSize - 1;
  expect_refused(multiply(), "the algorithm needs");
  workspace_bytes_ = chosen_.workspaceSize;
  EXPECT_EQ(multiply(), CUBLAS_STATUS_SUCCESS) << last_refusal();
  workspace_ = static_cast<char*>(memory_) + 128;
  expect_refused(multiply(), "multiple of 256");
  workspace_ = nullptr;
  expect_refused(multiply(), "workspace is null");
  workspace_ = memory_;
  a_ = static_cast<char*>(memory_);
  expect_refused(multiply(), "A lies in the workspace");
}

TEST_F(CublasLt, RefusesWhatIsAnotherGpus) {
  expect_right();
  const cudaStream_t right = stream_;
  cudaSetDevice(1);
  expect_refused(choose(), "for GPU 0, and GPU 1 is current");
  expect_refused(multiply(), "for GPU 0, and GPU 1 is current");
  cudaStreamCreate(&stream_);
  cublasLtHandle_t another = nullptr;
  ASSERT_EQ(lt().cublasLtCreate(&another), CUBLAS_STATUS_SUCCESS);
  const cublasLtHandle_t first = std::exchange(handle_, another);
  expect_refused(multiply(), "found on another GPU");
  cudaSetDevice(0);
  handle_ = first;
  expect_refused(multiply(), "the stream is another GPU's", CUBLAS_STATUS_EXECUTION_FAILED);
  cudaStreamDestroy(stream_);
  stream_ = nullptr;
  expect_refused(multiply(), "legacy stream");
  stream_ = right;
}

TEST_F(CublasLt, EndsTheProcessWhereAMatrixIsNotInTheGpusMemory) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  expect_right();
  alignas(16) static std::array<float, kM * kK> of_host;
  char* const right = std::exchange(a_, reinterpret_cast<char*>(of_host.data()));
  EXPECT_DEATH(multiply(), "A does not lie within one allocation of GPU 0");
  a_ = right;
  c_ = d_ = static_cast<char*>(memory_) + kMemory - 16;
  EXPECT_DEATH(multiply(), "C does not lie within one allocation");
  place_matrices();
  cudaSetDevice(1);
  void* elsewhere = nullptr;
  cudaMalloc(&elsewhere, 4096);
  cudaSetDevice(0);
  b_ = static_cast<char*>(elsewhere);
  EXPECT_DEATH(multiply(), "B does not lie within one allocation");
}

}  // namespace
}  // namespace tessera::emulated_cuda
