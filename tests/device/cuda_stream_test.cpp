// The host's side of a GPU's stream (order, ring of events, deadline, failure), over a runtime of the test's
// own.
#include "src/device/cuda_stream.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <thread>

#include "src/device/cpu_stream.h"
#include "src/device/host_words.h"
#include "tessera/error.h"
#include "tests/device/fake_cuda.h"

namespace tessera {
namespace {

using device::CudaStream;
using device::CudaStreamSettings;
using std::chrono::milliseconds;

constexpr const char* kVariable = "CUDA_DEVICE_MAX_CONNECTIONS";
const int kUnset = unsetenv(kVariable);  // before any test: the process asks once

class CudaStreams : public testing::Test {
 protected:
  void SetUp() override { fake_cuda::state() = {}; }
  void TearDown() override {
    settings_.words.reset();  // keeps what undone streams have left
    EXPECT_EQ(fake_cuda::state().streams, 0) << "a stream was not given back";
    EXPECT_EQ(fake_cuda::state().events, 0) << "an event was not given back";
  }

  CudaStream stream(const char* name = "lane", int capacity = 3, bool urgent = false) const {
    return CudaStream({.name = name, .capacity = capacity, .cpus = {}, .urgent = urgent}, settings_);
  }

  CudaStreamSettings settings_{
      .rank = 5,
      .ordinal = 2,
      .deadline = milliseconds(40),
      .failure = {},
      .words = std::make_shared<device::HostWords>(2, device::HostWords::find_calls())};
};

template <class Function>
void run(Stream& stream, Function function) {
  stream.run({.run = [](void* context, std::uint64_t) { (*static_cast<Function*>(context))(); },
              .context = &function});
}

std::string message_of(Stream& stream, Event event) {
  try {
    stream.synchronize(event);
    return "no error";
  } catch (const std::exception& error) {
    return error.what();
  }
}

TEST_F(CudaStreams, RunTasksAtOnceWithTheirGpuCurrent) {
  CudaStream lane = stream();
  fake_cuda::state().current_device = 0;
  int seen = -1;
  run(lane, [&] { seen = fake_cuda::state().current_device; });
  EXPECT_EQ(seen, 2);
  EXPECT_NE(lane.native(), nullptr);
}

TEST_F(CudaStreams, AreMadeWithTheirPriority) {
  const CudaStream plain = stream("compute");
  EXPECT_EQ(fake_cuda::state().last_priority, 0);
  EXPECT_EQ(fake_cuda::state().last_flags, static_cast<unsigned>(cudaStreamNonBlocking));
  const CudaStream urgent = stream("gather", 3, true);
  EXPECT_EQ(fake_cuda::state().last_priority, -5);
  settings_.ordered_with_fills = true;
  const CudaStream ordered = stream();
  EXPECT_EQ(fake_cuda::state().last_flags, static_cast<unsigned>(cudaStreamDefault));
}

TEST_F(CudaStreams, GetHardwareQueuesOfTheirOwn) {
  ASSERT_EQ(kUnset, 0);
  stream();
  EXPECT_STREQ(std::getenv(kVariable), "32");
  unsetenv(kVariable);
  std::thread([this] { stream(); }).join();
  EXPECT_EQ(std::getenv(kVariable), nullptr) << "other threads may be reading the environment by now";
  setenv(kVariable, "32", 1);
}

TEST_F(CudaStreams, KeepTheQueuesThatTheUserAskedFor) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");  // in a process that has not asked yet
  const auto ask = [this] {
    setenv(kVariable, "1", 1);
    stream();
    std::exit(std::string(std::getenv(kVariable)) == "1" ? 0 : 1);
  };
  EXPECT_EXIT(ask(), testing::ExitedWithCode(0), "");
}

TEST_F(CudaStreams, GiveBackWhatTheyTookWhenTheyCannotBeMade) {
  fake_cuda::state().most_events = 2;
  EXPECT_THROW(stream(), EnvironmentError);
}

TEST_F(CudaStreams, EventsAreDoneWhenTheStreamHasComeSoFar) {
  CudaStream lane = stream();
  const Event first = lane.record();
  EXPECT_TRUE(lane.done(first));
  fake_cuda::hold(lane.native());
  const Event second = lane.record();
  EXPECT_TRUE(lane.done(first));
  EXPECT_FALSE(lane.done(second));
  fake_cuda::release(lane.native());
  lane.synchronize(second);
  EXPECT_TRUE(lane.done(second));
}

TEST_F(CudaStreams, WaitForEachOther) {
  CudaStream compute = stream("compute"), gather = stream("gather");
  fake_cuda::hold(gather.native());
  const Event gathered = gather.record();
  compute.wait(gathered);
  const Event used = compute.record();
  EXPECT_FALSE(compute.done(used));
  fake_cuda::release(gather.native());
  EXPECT_TRUE(compute.done(used));
  EXPECT_EQ(fake_cuda::state().waits, 1);

  compute.wait({});
  compute.wait(used);
  gather.synchronize(gathered);
  compute.wait(gathered);
  EXPECT_EQ(fake_cuda::state().waits, 1) << "of nothing, of itself, of what is known to be done";
}

// A thread of the host, as the device of such streams makes it.
std::unique_ptr<Stream> host_stream(const CudaStreamSettings& settings) {
  return device::make_cpu_stream({.name = "host", .cpus = {}}, {.rank = settings.rank,
                                                                .policy = {},
                                                                .deadline = std::chrono::seconds(20),
                                                                .failure = settings.failure,
                                                                .word = settings.words->make()});
}

// A task that takes until it is told to end.
struct Held {
  std::atomic<bool> may_end{false};
  static void run(void* context, std::uint64_t) {
    while (!static_cast<Held*>(context)->may_end.load()) std::this_thread::yield();
  }
};

TEST_F(CudaStreams, WaitForThreadsOfTheHostWhileTheCallerGoesOn) {
  settings_.deadline = std::chrono::seconds(20);
  CudaStream lane = stream("upload"), other = stream("compute");
  const auto host = host_stream(settings_);
  for (int round = 1; round <= 3; ++round) {
    Held held;
    host->run({.run = &Held::run, .context = &held});
    lane.wait(host->record());
    const Event behind = lane.record();
    other.wait(behind);
    const Event behind_that = other.record();
    EXPECT_FALSE(lane.done(behind));
    EXPECT_FALSE(other.done(behind_that));
    held.may_end.store(true);
    lane.synchronize(behind);
    other.synchronize(behind_that);
    EXPECT_EQ(fake_cuda::state().host_waits, round);
  }
  host->synchronize();
  lane.wait(host->record());
  EXPECT_EQ(fake_cuda::state().host_waits, 3) << "it is done";
}

TEST_F(CudaStreams, BehindAThreadOfTheHostThatFailedThrowItsCause) {
  settings_.deadline = std::chrono::seconds(20);
  CudaStream lane = stream("upload");
  const auto host = host_stream(settings_);
  Held held;
  host->run({.run = &Held::run, .context = &held});
  host->run({.run = [](void*, std::uint64_t) { throw EnvironmentError("the disk is full"); }});
  lane.wait(host->record());
  const Event behind = lane.record();
  EXPECT_FALSE(lane.done(behind));
  held.may_end.store(true);
  EXPECT_EQ(message_of(lane, behind), "the disk is full");
}

TEST_F(CudaStreams, WaitForAnEventAndNotForTheOneThatReplacedIt) {
  CudaStream compute = stream("compute"), gather = stream("gather", 2);
  const Event old = gather.record();
  gather.record();
  gather.synchronize(old);
  fake_cuda::hold(gather.native());
  const Event replacing = gather.record();
  compute.wait(old);
  EXPECT_TRUE(compute.done(compute.record()));
  compute.wait(replacing);
  EXPECT_FALSE(compute.done(compute.record()));
  fake_cuda::release(gather.native());
}

TEST_F(CudaStreams, UseTheirEventsAgain) {
  CudaStream lane = stream("lane", 3);
  std::vector<Event> events;
  for (int i = 0; i < 100; ++i) events.push_back(lane.record());
  EXPECT_EQ(fake_cuda::state().events, 3 + 1) << "and the stream's end";
  for (const Event& event : events) EXPECT_TRUE(lane.done(event));
}

TEST_F(CudaStreams, ARecordWithoutAFreeEventWaitsForTheOldestWithinTheDeadline) {
  CudaStream lane = stream("lane", 3);
  fake_cuda::hold(lane.native());
  for (int i = 0; i < 3; ++i) lane.record();
  const Event fourth = lane.record();
  EXPECT_EQ(message_of(lane, fourth),
            "rank 5: stream 'lane' on GPU 2 did not reach event 1 within 40 ms; it has reached 0 of 3");
  EXPECT_TRUE(settings_.failure.failed());
  EXPECT_TRUE(lane.done(fourth));
}

TEST_F(CudaStreams, AWaitEndsAtTheDeadlineAndAtAFailureElsewhere) {
  CudaStream lane = stream();
  const Event before = lane.record();
  lane.synchronize(before);
  fake_cuda::hold(lane.native());
  const Event held = lane.record();
  EXPECT_EQ(message_of(lane, held),
            "rank 5: stream 'lane' on GPU 2 did not reach event 2 within 40 ms; it has reached 1 of 2");
  EXPECT_FALSE(settings_.failure.failed()) << "whoever waited decides what that means";
  settings_.failure.set("elsewhere");
  EXPECT_EQ(message_of(lane, held), "elsewhere");
  EXPECT_EQ(message_of(lane, before), "no error");
  EXPECT_THROW(run(lane, [] {}), Error);
}

TEST_F(CudaStreams, ATaskThatThrowsFailsTheStreamFromThereOn) {
  CudaStream lane = stream("lane"), other = stream("other");
  const Event before = lane.record();
  EXPECT_THROW(run(lane, [] { throw UsageError("task"); }), UsageError);
  bool later = false;
  run(lane, [&] { later = true; });
  const Event after = lane.record();
  EXPECT_FALSE(later);
  EXPECT_TRUE(lane.done(after));
  EXPECT_EQ(message_of(lane, before), "no error");
  EXPECT_EQ(message_of(lane, after), "task");
  EXPECT_THROW(other.wait(after), UsageError);
  EXPECT_EQ(settings_.failure.message(), "task");

  settings_.failure = {};
  CudaStream elsewhere = stream("of another device");
  EXPECT_THROW(elsewhere.wait(after), UsageError);
}

TEST_F(CudaStreams, AKernelThatFailsIsNoticedByWhoAsks) {
  CudaStream lane = stream("lane"), other = stream("other");
  const Event before = lane.record();
  lane.synchronize(before);
  const Event event = lane.record();
  fake_cuda::state().fault = cudaErrorIllegalAddress;
  EXPECT_TRUE(lane.done(event));
  EXPECT_EQ(message_of(lane, event),
            "rank 5, GPU 2: a kernel or a copy failed: a fault of the test's (cudaErrorFake)");
  EXPECT_EQ(message_of(lane, before), "no error");
  EXPECT_THROW(run(other, [] {}), EnvironmentError);
}

TEST_F(CudaStreams, ARecordThatFailsFailsItsEvent) {
  CudaStream lane = stream();
  fake_cuda::state().fault = cudaErrorIllegalAddress;
  const Event event = lane.record();
  EXPECT_EQ(message_of(lane, event),
            "rank 5, GPU 2: cudaEventRecord failed: a fault of the test's (cudaErrorFake)");
}

TEST_F(CudaStreams, AreGivenBackWhenTheyDoNotEnd) {
  CudaStream lane = stream();
  fake_cuda::hold(lane.native());
  lane.record();
}

}  // namespace
}  // namespace tessera
