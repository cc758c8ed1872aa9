// Marks on a GPU's streams, over a runtime of the test's own whose clock the test sets.
#include "src/device/cuda_marks.h"

#include <gtest/gtest.h>

#include "src/device/cpu_stream.h"
#include "tessera/error.h"
#include "tests/device/fake_cuda.h"

namespace tessera {
namespace {

using device::CudaMarks;
using device::CudaStream;
using std::chrono::milliseconds;

class TimedStreams : public testing::Test {
 protected:
  void SetUp() override { fake_cuda::state() = {}; }
  void TearDown() override {
    settings_.words.reset();  // keeps what undone streams have left
    EXPECT_EQ(fake_cuda::state().events, 0) << "an event was not given back";
  }

  CudaStream stream(const char* name) const {
    return CudaStream({.name = name, .capacity = 3, .cpus = {}}, settings_);
  }

  device::CudaStreamSettings settings_{
      .rank = 5,
      .ordinal = 2,
      .deadline = milliseconds(40),
      .failure = {},
      .words = std::make_shared<device::HostWords>(2, device::HostWords::find_calls())};
};

TEST_F(TimedStreams, HaveTheTimesAtWhichTheGpuReachedTheirMarks) {
  CudaStream compute = stream("compute"), gather = stream("gather");
  CudaMarks marks(3, settings_);
  const int events = fake_cuda::state().events;
  for (const float start_ms : {10.0f, 500.0f}) {  // two steps
    fake_cuda::state().now_ms = start_ms;
    marks.begin(compute);
    fake_cuda::hold(gather.native());
    marks.mark(1, gather);  // given to the stream before, reached after the other
    fake_cuda::state().now_ms = start_ms + 2;
    marks.mark(0, compute);
    compute.synchronize(compute.record());
    EXPECT_THROW(marks.us(1), EnvironmentError) << "the stream has not come so far";
    fake_cuda::state().now_ms = start_ms + 7;
    fake_cuda::release(gather.native());
    gather.synchronize(gather.record());
    EXPECT_DOUBLE_EQ(marks.us(1) - marks.us(0), 5000.0);
    EXPECT_LE(marks.us(0), 2000.0) << "time 0 is when begin() returned, after the GPU came to it";
    EXPECT_GT(marks.us(0), -40'000.0);
  }
  EXPECT_EQ(fake_cuda::state().events, events) << "made up front";
}

TEST_F(TimedStreams, OfTheHostAreTimedByItsClock) {
  CudaStream compute = stream("compute");
  const auto host = device::make_cpu_stream({.name = "host", .cpus = {}},
                                            {.policy = {}, .deadline = milliseconds(10'000), .failure = {}});
  CudaMarks marks(1, settings_);
  marks.begin(compute);
  const auto before = std::chrono::steady_clock::now();
  struct Timed {
    CudaMarks& marks;
    Stream& stream;
  } timed{marks, *host};
  host->run({.run =
                 [](void* context, std::uint64_t) {
                   const Timed& at = *static_cast<Timed*>(context);
                   device::sleep_exactly(milliseconds(3));
                   at.marks.mark(0, at.stream);
                 },
             .context = &timed});
  host->synchronize();
  const auto passed = std::chrono::steady_clock::now() - before;
  EXPECT_GE(marks.us(0), 3000.0);
  EXPECT_LE(marks.us(0), 1e6 * std::chrono::duration<double>(passed).count() + 3000.0);
}

// A host whose threads are put aside hears late: each single answer leaves milliseconds open.
TEST_F(TimedStreams, AgreeWithTheHostThoughEveryAnswerIsLate) {
  const auto now_us = [] {
    return 1e-3 * static_cast<double>(std::chrono::steady_clock::now().time_since_epoch().count());
  };
  const double origin_us = now_us();
  int answers = 0;
  bool late = true;
  fake_cuda::state().clock = [&] { return static_cast<float>(1e-3 * (now_us() - origin_us)); };
  fake_cuda::state().before_record = [&] {
    if (late && (answers < 4 || answers % 2 == 0)) device::sleep_exactly(milliseconds(4));
  };
  fake_cuda::state().after_record = [&] {
    if (late && (answers < 4 || answers % 2 != 0)) device::sleep_exactly(milliseconds(7));
    ++answers;
  };
  CudaStream compute = stream("compute");
  CudaMarks marks(1, settings_);
  double furthest_us = 1e9;  // the best of a few steps: this thread may be put aside itself
  for (int step = 0; step < 5 && furthest_us > 500; ++step) {
    answers = 0;
    late = true;
    marks.begin(compute);
    const double zero_us = now_us();
    EXPECT_GE(answers, 6) << "each of the first leaves milliseconds open";
    late = false;
    device::sleep_exactly(milliseconds(3));
    marks.mark(0, compute);
    furthest_us = std::min(furthest_us, std::abs(marks.us(0) - (now_us() - zero_us)));
  }
  EXPECT_LE(furthest_us, 500);
}

TEST_F(TimedStreams, GiveBackWhatTheyTookWhenTheMarksCannotBeMade) {
  fake_cuda::state().most_events = 2;
  EXPECT_THROW(CudaMarks(5, settings_), EnvironmentError);
}

TEST_F(TimedStreams, DoNotBeginWhileTheGpuDoesNotAnswer) {
  CudaStream compute = stream("compute");
  CudaMarks marks(1, settings_);
  fake_cuda::hold(compute.native());
  EXPECT_THROW(marks.begin(compute), EnvironmentError);
}

}  // namespace
}  // namespace tessera
