// What the stand-in for cuBLASLt computes, when it reads what, and what it makes of a workspace.
#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

#include "tests/emulated_cuda/cublas_lt_call.h"
#include "tests/emulated_cuda/emulator.h"

namespace tessera::emulated_cuda {
namespace {

TEST_F(CublasLt, TakesWhatIsRight) {
  write(a_, std::vector<float>(kM * kK, 2.0f));
  write(b_, std::vector<float>(kK * kN, 3.0f));
  expect_right();
  EXPECT_EQ(read(d_, kM * kN), std::vector<float>(kM * kN, 24.0f));
}

TEST_F(CublasLt, FillsTheWorkspaceThatItNeeds) {
  std::set<std::size_t> needed;
  for (std::uint64_t columns = 1; columns <= 100; ++columns) {
    b_layout_ = layout(CUDA_R_32F, kK, columns, kK);
    c_layout_ = d_layout_ = layout(CUDA_R_32F, kM, columns, kM);
    write(workspace_, std::vector<float>(kOffered / 4, 1.0f));
    expect_right();
    const std::size_t bytes = chosen_.workspaceSize;
    ASSERT_LE(bytes, kOffered);
    if (!needed.insert(bytes).second) continue;
    const std::vector<float> after = read(workspace_, kOffered / 4);
    const std::size_t whole = bytes / 4, behind = (bytes + 3) / 4;
    if (whole > 0) {
      EXPECT_TRUE(std::isnan(after[0])) << bytes;
      EXPECT_TRUE(std::isnan(after[whole - 1])) << bytes;
    }
    if (behind < after.size()) {
      EXPECT_EQ(after[behind], 1.0f) << bytes;
    }
  }
  EXPECT_TRUE(needed.contains(0));
  EXPECT_TRUE(needed.contains(kOffered));
  EXPECT_GE(needed.size(), 6u);
}

TEST_F(CublasLt, NeverNeedsMoreWorkspaceThanItMayHave) {
  prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, std::uint64_t{300});
  for (std::uint64_t columns = 1; columns <= 50; ++columns) {
    b_layout_ = layout(CUDA_R_32F, kK, columns, kK);
    c_layout_ = d_layout_ = layout(CUDA_R_32F, kM, columns, kM);
    ASSERT_EQ(choose(), CUBLAS_STATUS_SUCCESS);
    EXPECT_LE(chosen_.workspaceSize, 300u);
  }
}

TEST_F(CublasLt, ReadsTheBiasThatTheCallHas) {
  use_bias();
  ASSERT_EQ(choose(), CUBLAS_STATUS_SUCCESS);
  write(a_, std::vector<float>(kM * kK, 0.0f));
  write(b_, std::vector<float>(kK * kN, 0.0f));
  write(bias_, {1, 2, 3, 4, 5, 6, 7, 8});
  set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias_);
  ASSERT_EQ(multiply(), CUBLAS_STATUS_SUCCESS) << last_refusal();
  set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias_ + 16);  // of a later call
  const std::vector<float> result = read(d_, kM * kN);
  for (std::size_t i = 0; i < result.size(); ++i) EXPECT_EQ(result[i], static_cast<float>(i % kM + 1));
  set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias_ + 8);
  expect_refused(multiply(), "the one that the heuristic saw was aligned to 16");
  set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, static_cast<void*>(nullptr));
  expect_refused(multiply(), "the bias is null");
  set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, workspace_);
  expect_refused(multiply(), "the bias lies in the workspace");
}

// Scales are the host's, and read at once; matrices are the GPU's, and read when the stream comes to it.

TEST_F(CublasLt, ReadsScalesAtTheCallAndMatricesInItsTurn) {
  ASSERT_EQ(choose(), CUBLAS_STATUS_SUCCESS);
  write(a_, std::vector<float>(kM * kK, 1.0f));
  write(b_, std::vector<float>(kK * kN, 1.0f));
  write(d_, std::vector<float>(kM * kN, 10.0f));
  const std::vector<float> twos(kM * kK, 2.0f);
  float alpha = 3, beta = 0.5f;
  alpha_ = &alpha;
  beta_ = &beta;
  hold(stream_);
  cudaMemcpyAsync(a_, twos.data(), twos.size() * sizeof(float), cudaMemcpyHostToDevice, stream_);
  ASSERT_EQ(multiply(), CUBLAS_STATUS_SUCCESS) << last_refusal();
  alpha = beta = std::numeric_limits<float>::quiet_NaN();
  release(stream_);
  EXPECT_EQ(read(d_, kM * kN), std::vector<float>(kM * kN, 3.0f * 2.0f * kK + 5.0f));
  alpha_ = nullptr;
  expect_refused(multiply(), "alpha is null");
}

TEST_F(CublasLt, ReadsNoCWhereBetaIsZero) {
  write(a_, std::vector<float>(kM * kK, 1.0f));
  write(b_, std::vector<float>(kK * kN, 1.0f));
  write(d_, std::vector<float>(kM * kN, std::numeric_limits<float>::quiet_NaN()));
  expect_right();
  EXPECT_EQ(read(d_, kM * kN), std::vector<float>(kM * kN, float{kK}));
}

// By its status, by the count of results, or by the state of the one it gives.

TEST_F(CublasLt, SaysInThreeWaysThatThereIsNoAlgorithm) {
  std::set<int> ways;
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, std::uint32_t{2});
  for (std::uint64_t columns = 1; columns <= 20; ++columns) {
    b_layout_ = layout(CUDA_R_32F, kK, columns, kK);
    c_layout_ = d_layout_ = layout(CUDA_R_32F, kM, columns, kM);
    found_ = -1;
    if (choose() == CUBLAS_STATUS_NOT_SUPPORTED)
      ways.insert(0);
    else if (found_ == 0)
      ways.insert(1);
    else if (chosen_.state == CUBLAS_STATUS_NOT_SUPPORTED)
      ways.insert(2);
    else
      FAIL() << "an algorithm for fp32 at a multiple of 2 bytes";
    expect_refused(multiply(), "none of the heuristic's");
  }
  EXPECT_EQ(ways.size(), 3u);
}

// A long sum, with D in eight layouts that give it eight algorithms.
class CublasLtBits : public CublasLt {
 protected:
  static constexpr std::size_t kLong = 100, kLayouts = 8, kCalls = 4;
  using Bits = std::set<std::vector<float>>;

  void SetUp() override {
    CublasLt::SetUp();
    std::vector<float> values(kM * kLong);
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = std::sin(static_cast<float>(i));
    write(a_, values);
    values.resize(kLong);
    write(b_, values);
    a_layout_ = layout(CUDA_R_32F, kM, kLong, kM);
    b_layout_ = layout(CUDA_R_32F, kLong, 1, kLong);
  }
  // By layout, what several calls gave.
  std::vector<Bits> bits_of(std::uint32_t schemes) {
    prefer(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, schemes);
    std::vector<Bits> all(kLayouts);
    for (std::size_t i = 0; i < kLayouts; ++i) {
      c_layout_ = d_layout_ = layout(CUDA_R_32F, kM, 1, kM + i);
      for (std::size_t call = 0; call < kCalls; ++call) {
        expect_right();
        all[i].insert(read(d_, kM));
      }
    }
    return all;
  }
  static bool change_from_call_to_call(const std::vector<Bits>& all) {
    return std::ranges::any_of(all, [](const Bits& of_layout) { return of_layout.size() > 1; });
  }
};

// With atomics, parts of a sum come in any order.
TEST_F(CublasLtBits, ChangeFromCallToCallOnlyWhereAtomicsAreAllowed) {
  EXPECT_TRUE(change_from_call_to_call(bits_of(CUBLASLT_REDUCTION_SCHEME_MASK)));
  EXPECT_FALSE(change_from_call_to_call(bits_of(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE)));
  EXPECT_FALSE(change_from_call_to_call(bits_of(CUBLASLT_REDUCTION_SCHEME_NONE)));
}

TEST_F(CublasLtBits, DependOnTheAlgorithmWhereSumsMayBeSplit) {
  const auto different = [&](std::uint32_t schemes) {
    Bits together;
    for (const Bits& of_layout : bits_of(schemes)) together.insert(of_layout.begin(), of_layout.end());
    return together.size();
  };
  EXPECT_GT(different(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE), 1u);
  EXPECT_EQ(different(CUBLASLT_REDUCTION_SCHEME_NONE), 1u);
}

TEST_F(CublasLt, NotesTheLeastAlignmentOfAProduct) {
  forget_products();
  expect_right();
  EXPECT_EQ(noted_products().count, 1);
  EXPECT_EQ(noted_products().least_alignment, 16);  // of B's columns
  c_layout_ = d_layout_ = layout(CUDA_R_32F, kM, kN, kM + 1);
  expect_right();
  EXPECT_EQ(noted_products().least_alignment, 4);
  EXPECT_NE(noted_products().least_aligned.find("D[8, 6 by 9] fp32"), std::string::npos)
      << noted_products().least_aligned;
  EXPECT_EQ(noted_products().count, 2);
}

}  // namespace
}  // namespace tessera::emulated_cuda
