// What the emulation allows while streams are captured, and what a graph then does.
#include <cuda.h>
#include <gtest/gtest.h>

#include <array>

#include "tests/emulated_cuda/capture.h"
#include "tests/emulated_cuda/emulator.h"

namespace tessera::emulated_cuda {
namespace {

void kernel() {}
void another() {}
const void* const kKernel = reinterpret_cast<const void*>(&kernel);

class CaptureRules : public ::testing::Test {
 protected:
  void SetUp() override {
    for (cudaStream_t* stream : {&first_, &second_})
      ASSERT_EQ(cudaStreamCreateWithPriority(stream, cudaStreamNonBlocking, 0), cudaSuccess);
    for (cudaEvent_t* event : {&fork_, &join_})
      ASSERT_EQ(cudaEventCreateWithFlags(event, cudaEventDisableTiming), cudaSuccess);
    ASSERT_EQ(cudaHostAlloc(reinterpret_cast<void**>(&numbers_), 16 * sizeof(int), 0), cudaSuccess);
    std::fill_n(numbers_, 16, 0);
    run(first_, [] {});  // else it would be loaded while streams are captured
  }
  void TearDown() override {
    cudaStreamSynchronize(first_);
    cudaStreamSynchronize(second_);
    cudaFreeHost(numbers_);
    for (cudaEvent_t event : {fork_, join_}) cudaEventDestroy(event);
    for (cudaStream_t stream : {first_, second_}) cudaStreamDestroy(stream);
  }
  void begin() { ASSERT_EQ(cudaStreamBeginCapture(first_, cudaStreamCaptureModeThreadLocal), cudaSuccess); }
  // One thread that runs `work`.
  void run(cudaStream_t stream, std::function<void()> work) {
    ASSERT_EQ(launch(stream, {.kernel = kKernel, .blocks = {1}, .threads = {1}}, std::move(work)),
              cudaSuccess);
  }
  cudaError_t end() {
    cudaGraph_t graph = nullptr;
    const cudaError_t result = cudaStreamEndCapture(first_, &graph);
    if (graph != nullptr) cudaGraphDestroy(graph);
    return result;
  }

  cudaStream_t first_ = nullptr, second_ = nullptr;
  cudaEvent_t fork_ = nullptr, join_ = nullptr;
  int* numbers_ = nullptr;
};

TEST_F(CaptureRules, AGraphDoesWhatWasCapturedOnceALaunchInTheOrderOfItsEdges) {
  begin();
  int value = 5;
  run(first_, [this] { numbers_[0] += 1; });
  ASSERT_EQ(cudaEventRecord(fork_, first_), cudaSuccess);
  ASSERT_EQ(cudaStreamWaitEvent(second_, fork_, 0), cudaSuccess);
  run(second_, [this, value] { numbers_[1] = numbers_[0] * value; });
  ASSERT_EQ(cudaEventRecord(join_, second_), cudaSuccess);
  run(first_, [this] { numbers_[2] = numbers_[0] + 100; });
  ASSERT_EQ(cudaStreamWaitEvent(first_, join_, 0), cudaSuccess);
  run(first_, [this] { numbers_[3] = numbers_[1] + numbers_[2]; });
  value = 7;  // was given by value
  cudaGraph_t graph = nullptr;
  ASSERT_EQ(cudaStreamEndCapture(first_, &graph), cudaSuccess);
  EXPECT_EQ(numbers_[0], 0) << "what is captured is not done";
  std::size_t nodes = 0;
  ASSERT_EQ(cudaGraphGetNodes(graph, nullptr, &nodes), cudaSuccess);
  EXPECT_EQ(nodes, 4u);
  cudaGraphExec_t exec = nullptr;
  ASSERT_EQ(cudaGraphInstantiate(&exec, graph, 0), cudaSuccess);
  ASSERT_EQ(cudaGraphDestroy(graph), cudaSuccess);
  for (int turn = 1; turn <= 20; ++turn) {
    ASSERT_EQ(cudaGraphLaunch(exec, first_), cudaSuccess);
    run(first_, [this] { numbers_[4] = numbers_[3]; });
    ASSERT_EQ(cudaStreamSynchronize(first_), cudaSuccess);
    ASSERT_EQ(numbers_[4], turn * 5 + turn + 100);
  }
  ASSERT_EQ(cudaGraphExecDestroy(exec), cudaSuccess);
}

TEST_F(CaptureRules, NobodyWaitsForWhatIsCaptured) {
  for (const auto& spoil : std::initializer_list<std::pair<std::function<cudaError_t()>, cudaError_t>>{
           {[this] { return cudaStreamSynchronize(first_); }, cudaErrorStreamCaptureUnsupported},
           {[] { return cudaDeviceSynchronize(); }, cudaErrorStreamCaptureUnsupported},
           {[] {
              void* memory = nullptr;
              return cudaMalloc(&memory, 64);
            },
            cudaErrorStreamCaptureUnsupported},
           {[this] { return cudaMemcpy(numbers_, numbers_ + 1, 4, cudaMemcpyDefault); },
            cudaErrorStreamCaptureUnsupported},
           {[this] {
              return static_cast<cudaError_t>(cuStreamWriteValue32(
                  first_, reinterpret_cast<CUdeviceptr>(numbers_), 1, CU_STREAM_WRITE_VALUE_DEFAULT));
            },
            cudaErrorStreamCaptureUnsupported}}) {
    begin();
    EXPECT_EQ(spoil.first(), spoil.second);
    EXPECT_EQ(end(), cudaErrorStreamCaptureInvalidated);
  }
  begin();
  ASSERT_EQ(cudaEventRecord(fork_, first_), cudaSuccess);
  EXPECT_EQ(cudaEventQuery(fork_), cudaErrorCapturedEvent);
  EXPECT_EQ(cudaEventSynchronize(fork_), cudaErrorCapturedEvent);
  EXPECT_EQ(end(), cudaSuccess);
}

TEST_F(CaptureRules, StreamsJoinAndAreJoined) {
  begin();
  ASSERT_EQ(cudaEventRecord(fork_, first_), cudaSuccess);
  ASSERT_EQ(cudaStreamWaitEvent(second_, fork_, 0), cudaSuccess);
  run(second_, [] {});
  EXPECT_EQ(end(), cudaErrorStreamCaptureUnjoined);
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusActive;
  ASSERT_EQ(cudaStreamIsCapturing(second_, &status), cudaSuccess);
  EXPECT_EQ(status, cudaStreamCaptureStatusNone) << "the capture has ended for all";
  cudaGraph_t graph = nullptr;
  begin();
  ASSERT_EQ(cudaEventRecord(fork_, first_), cudaSuccess);
  ASSERT_EQ(cudaStreamWaitEvent(second_, fork_, 0), cudaSuccess);
  EXPECT_EQ(cudaStreamEndCapture(second_, &graph), cudaErrorStreamCaptureUnmatched);
  EXPECT_EQ(end(), cudaSuccess);
}

TEST_F(CaptureRules, WorkOfBeforeIsNotWaitedForWithin) {
  run(second_, [] {});
  ASSERT_EQ(cudaEventRecord(join_, second_), cudaSuccess);
  begin();
  EXPECT_EQ(cudaStreamWaitEvent(first_, join_, 0), cudaErrorStreamCaptureIsolation);
  EXPECT_EQ(end(), cudaErrorStreamCaptureInvalidated);
}

TEST_F(CaptureRules, ACaptureDoesNotMeetAnother) {
  begin();
  ASSERT_EQ(cudaStreamBeginCapture(second_, cudaStreamCaptureModeThreadLocal), cudaSuccess);
  ASSERT_EQ(cudaEventRecord(fork_, first_), cudaSuccess);
  EXPECT_EQ(cudaStreamWaitEvent(second_, fork_, 0), cudaErrorStreamCaptureMerge);
  cudaGraph_t graph = nullptr;
  EXPECT_EQ(cudaStreamEndCapture(second_, &graph), cudaErrorStreamCaptureInvalidated);
  EXPECT_EQ(end(), cudaErrorStreamCaptureInvalidated);
}

TEST_F(CaptureRules, NoKernelIsLoadedMeanwhile) {
  begin();
  EXPECT_EQ(launch(first_, {.kernel = reinterpret_cast<const void*>(&another), .blocks = {1}, .threads = {1}},
                   [] {}),
            cudaErrorStreamCaptureUnsupported);
  EXPECT_EQ(end(), cudaErrorStreamCaptureInvalidated);
}

TEST_F(CaptureRules, ACopyReadsWhenItIsDone) {
  int source = 3;
  begin();
  ASSERT_EQ(cudaMemcpyAsync(numbers_, &source, sizeof source, cudaMemcpyDefault, first_), cudaSuccess);
  cudaGraph_t graph = nullptr;
  ASSERT_EQ(cudaStreamEndCapture(first_, &graph), cudaSuccess);
  cudaGraphExec_t exec = nullptr;
  ASSERT_EQ(cudaGraphInstantiate(&exec, graph, 0), cudaSuccess);
  source = 4;
  ASSERT_EQ(cudaGraphLaunch(exec, first_), cudaSuccess);
  ASSERT_EQ(cudaStreamSynchronize(first_), cudaSuccess);
  EXPECT_EQ(numbers_[0], 4);
  ASSERT_EQ(cudaGraphExecDestroy(exec), cudaSuccess);
  ASSERT_EQ(cudaGraphDestroy(graph), cudaSuccess);
}

// Another capture of the same shape takes a graph's place, for launches from then on.
TEST_F(CaptureRules, AGraphIsUpdatedOnlyToOneOfItsShape) {
  const auto captured = [&](int value, bool forks) {
    begin();
    run(first_, [this, value] { numbers_[0] = value; });
    if (forks) {
      EXPECT_EQ(cudaEventRecord(fork_, first_), cudaSuccess);
      EXPECT_EQ(cudaStreamWaitEvent(second_, fork_, 0), cudaSuccess);
      run(second_, [] {});
      EXPECT_EQ(cudaEventRecord(join_, second_), cudaSuccess);
      EXPECT_EQ(cudaStreamWaitEvent(first_, join_, 0), cudaSuccess);
    } else {
      run(first_, [] {});
    }
    cudaGraph_t graph = nullptr;
    EXPECT_EQ(cudaStreamEndCapture(first_, &graph), cudaSuccess);
    return graph;
  };
  const cudaGraph_t one = captured(1, false), two = captured(2, false), forked = captured(3, true);
  cudaGraphExec_t exec = nullptr;
  ASSERT_EQ(cudaGraphInstantiate(&exec, one, 0), cudaSuccess);
  const auto result_of_launch = [&] {
    EXPECT_EQ(cudaGraphLaunch(exec, first_), cudaSuccess);
    EXPECT_EQ(cudaStreamSynchronize(first_), cudaSuccess);
    return numbers_[0];
  };
  EXPECT_EQ(result_of_launch(), 1);
  cudaGraphExecUpdateResultInfo info = {};
  EXPECT_EQ(cudaGraphExecUpdate(exec, two, &info), cudaSuccess);
  EXPECT_EQ(info.result, cudaGraphExecUpdateSuccess);
  EXPECT_EQ(result_of_launch(), 2);
  EXPECT_EQ(cudaGraphExecUpdate(exec, forked, &info), cudaErrorGraphExecUpdateFailure);
  EXPECT_EQ(info.result, cudaGraphExecUpdateErrorTopologyChanged);
  EXPECT_EQ(result_of_launch(), 2) << "it stays as it was";
  ASSERT_EQ(cudaGraphExecDestroy(exec), cudaSuccess);
  for (const cudaGraph_t graph : {one, two, forked}) ASSERT_EQ(cudaGraphDestroy(graph), cudaSuccess);
}

}  // namespace
}  // namespace tessera::emulated_cuda
