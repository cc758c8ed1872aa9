// A step of a trainer on a GPU while one call of the runtime fails, each call in turn: it says which, or the
// step's result does not depend on it. Nothing waits for good, and what was taken is given back.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <set>

#include "tests/emulated_cuda/calls.h"
#include "tests/engine/matrix.h"
#include "tests/refusal.h"

namespace tessera::testing {
namespace {

using emulated_cuda::calls_made;
using emulated_cuda::fail_call;
using emulated_cuda::forget_calls;
using emulated_cuda::Taken;
using emulated_cuda::taken;

RunConfig one_step() {
  return {.family = Family::mlp,
          .microbatches = 1,
          .steps = 1,
          .device = DeviceType::cuda,
          .offload = {.states = Space::host}};
}

// What a failure may be called by instead of the call: a kernel by its operation, a question by what it asks
// for.
std::vector<std::string> words_for(const std::string& call) {
  if (call == "cudaLaunchKernel") return {" failed: cudaErrorMemoryAllocation"};
  if (call == "cudaEventQuery") return {"a kernel or a copy failed"};
  if (call == "cudaGetDeviceCount") return {"no GPU can be used: cudaErrorMemoryAllocation"};
  return {call + " failed"};
}

// These gave back nothing, because the test had them refuse to.
bool gives_back(const std::string& call) {
  return std::set<std::string>{"cudaFree", "cudaFreeHost", "cudaStreamDestroy", "cudaEventDestroy"}.contains(
      call);
}

// Whether a message names the call.
bool expect_failure(const std::string& call, int at, const RunResult& expected) {
  SCOPED_TRACE(call + " number " + std::to_string(at));
  bool named = false;
  const Taken before = taken();
  const auto begin = std::chrono::steady_clock::now();
  fail_call(call, at, cudaErrorMemoryAllocation);
  try {
    EXPECT_TRUE(same_bits(run_training(one_step()), expected)) << "the failure is not seen";
  } catch (const Error& error) {
    expect_words(error.what(), words_for(call));
    named = true;
  }
  fail_call("", 0, cudaSuccess);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(30));
  EXPECT_EQ(cudaGetLastError(), cudaSuccess) << "the next kernel would be blamed";
  if (!gives_back(call)) {
    EXPECT_EQ(taken().streams, before.streams);
    EXPECT_EQ(taken().events, before.events);
    EXPECT_EQ(taken().bytes, before.bytes);
  }
  return named;
}

TEST(FailingCalls, AreNamedOrDoNoHarm) {
  run_training(one_step());  // what a thread keeps is kept from now on
  forget_calls();
  const RunResult expected = run_training(one_step());
  const std::map<std::string, int> made = calls_made();
  EXPECT_GE(made.size(), 18U);
  std::map<std::string, bool> named;
  for (const auto& [call, count] : made)
    for (const int at : std::set{1, 2, count / 2, count})
      if (at >= 1 && at <= count) named[call] |= expect_failure(call, at, expected);
  // The others are questions with an answer for where there is none, and calls of destructors.
  EXPECT_GE(std::ranges::count_if(named, [](const auto& one) { return one.second; }), 14);
  EXPECT_TRUE(same_bits(run_training(one_step()), expected)) << "after all failures";
}

}  // namespace
}  // namespace tessera::testing
