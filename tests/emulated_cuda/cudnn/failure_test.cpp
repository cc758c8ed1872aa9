// Every call of cuDNN's fails in turn. Attention then says so in its own words, or succeeds without what
// failed; it never falls back to another kernel, and the next call computes as ever.
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "tessera/error.h"
#include "tests/emulated_cuda/cudnn/engines.h"
#include "tests/emulated_cuda/cudnn/gpu_attention.h"
#include "tests/emulated_cuda/cudnn/stand_in.h"
#include "tests/program/sampled.h"

namespace tessera::kernels::testing {
namespace {

using emulated_cudnn::fail_after;
using emulated_cudnn::failed_call;
using emulated_cudnn::kRightEngine;
using emulated_cudnn::seen;

// A shape for each number, so that no graph was made for it.
AttentionInputs inputs_of(int number) {
  const int heads = 1 + number / 64;
  return {bf16_shape(1 + number % 8, 4 * (1 + number / 8 % 8), heads, heads, 8), 11};
}

// What attention says where the call behind `calls` more fails; empty if it succeeds.
std::string complaint(const AttentionInputs& in, int calls, AttentionOutputs& out) {
  fail_after(calls);
  std::string words;
  try {
    out = attend(in);
  } catch (const Error& error) {
    words = error.what();
  } catch (const std::exception& error) {
    ADD_FAILURE() << failed_call() << " ended in an error that is not the project's: " << error.what();
  }
  fail_after(-1);
  return words;
}

// There are about a thousand calls, and many are alike: of so many in a row one fails.
TEST(CudnnFailure, OfAnyCallIsSaid) {
  const AttentionOutputs none = {Tensor(DType::bf16, 0), Tensor(DType::bf16, 0), Tensor(DType::bf16, 0)};
  const int each = tessera::testing::sampled_each(7);
  std::map<std::string, int> said;
  for (int attempt = 0;; ++attempt) {
    const AttentionInputs in = inputs_of(attempt);
    AttentionOutputs out = none;
    const int runs = seen().runs;
    const std::string words = complaint(in, each * attempt, out);
    const std::string failed = failed_call();
    if (failed.empty()) {
      EXPECT_GT(each * attempt, 500) << "a forward and a backward make more calls";
      break;
    }
    const AttentionOutputs again = attend(in);
    EXPECT_EQ(seen().engine, kRightEngine);
    if (words.empty()) {  // what was not needed, such as a choice of a knob
      EXPECT_EQ(out, again) << "call " << each * attempt << ", " << failed;
      continue;
    }
    ++said[failed];
    EXPECT_NE(words.find("attention by cuDNN"), std::string::npos) << words;
    EXPECT_LE(seen().runs, runs + 3) << "it went on";
  }
  for (const char* name : {"cudnnBackendCreateDescriptor", "cudnnBackendSetAttribute", "cudnnBackendFinalize",
                           "cudnnBackendGetAttribute"})
    EXPECT_GT(said[name], 0) << name;
}

// Those of a run behind the first.
TEST(CudnnFailure, OfARunIsSaid) {
  const AttentionInputs in = inputs_of(0);
  const AttentionOutputs expected = attend(in);
  const int left_over = emulated_cudnn::left_over();
  std::set<std::string> said;
  for (int call = 0;; ++call) {
    AttentionOutputs out = expected;
    const std::string words = complaint(in, call, out);
    if (failed_call().empty()) break;
    EXPECT_NE(words.find("attention by cuDNN"), std::string::npos) << failed_call() << ": " << words;
    said.insert(failed_call());
    EXPECT_EQ(attend(in), expected);
  }
  EXPECT_EQ(emulated_cudnn::left_over(), left_over) << "a descriptor was not destroyed";
  EXPECT_EQ(said, (std::set<std::string>{"cudnnBackendCreateDescriptor", "cudnnBackendExecute",
                                         "cudnnBackendFinalize", "cudnnBackendSetAttribute", "cudnnGetStream",
                                         "cudnnSetStream"}));
}

TEST(CudnnFailure, OfAHandleIsSaid) {
  const AttentionInputs in = inputs_of(0);
  const AttentionOutputs expected = attend(in);
  device::make_current(2);  // for which this thread has no handle
  const int handles = seen().handles;
  AttentionOutputs out = expected;
  EXPECT_EQ(complaint(in, 0, out), "attention by cuDNN: cudnnCreate failed: CUDNN_STATUS_INTERNAL_ERROR");
  EXPECT_EQ(attend(in), expected);
  EXPECT_EQ(seen().handles, handles + 3) << "one for each question about workspace, and the thread's own";
  device::make_current(0);
}

// Shapes that the rule of cudnn_layout.h takes have a plan. If cuDNN has none, it says why.
TEST(CudnnFailure, OfAGraphThatHasNoPlanIsSaid) {
  const AttentionShape wide = bf16_shape(1, 16, 1, 1, 256);
  try {
    cuda::cudnn_forward_workspace_bytes(wide, on_gpu(0));
    FAIL() << "a head of 256 channels has a plan";
  } catch (const UnsupportedError& error) {
    const std::string words = error.what();
    for (const char* part : {"1 x 16, 1 heads of 256 channels, 1 of keys and values", "256 channels",
                             "-DTESSERA_WITH_CUDNN=OFF"})
      EXPECT_NE(words.find(part), std::string::npos) << words;
  }
}

}  // namespace
}  // namespace tessera::kernels::testing
