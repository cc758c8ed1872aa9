#include <gtest/gtest.h>

#include <functional>
#include <random>
#include <thread>

#include "tessera/device.h"
#include "tessera/error.h"

namespace tessera {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

// Tasks out of closures, for tests; they live as long as this.
class Closures {
 public:
  Task task(std::function<void()> function) {
    functions_.push_back(std::make_unique<std::function<void()>>(std::move(function)));
    return {.run = [](void* context, std::uint64_t) { (*static_cast<std::function<void()>*>(context))(); },
            .context = functions_.back().get()};
  }

 private:
  std::vector<std::unique_ptr<std::function<void()>>> functions_;
};

// A door that a task waits at until the test opens it.
struct Door {
  std::atomic<bool> open{false};
  void pass() {
    while (!open.load()) std::this_thread::sleep_for(milliseconds(1));
  }
};

class StreamKinds : public testing::TestWithParam<bool> {
 protected:
  std::unique_ptr<Stream> make(const char* name = "lane", int capacity = 64) {
    return device_->make_stream({.name = name, .on_caller = GetParam(), .capacity = capacity});
  }
  std::unique_ptr<Device> device_ = make_cpu_device({});
  Closures closures_;
};

TEST_P(StreamKinds, RunsInOrderWithArguments) {
  const auto stream = make();
  std::vector<std::uint64_t> seen;
  for (std::uint64_t i = 0; i < 1000; ++i)
    stream->run({.run =
                     [](void* context, std::uint64_t argument) {
                       static_cast<std::vector<std::uint64_t>*>(context)->push_back(argument);
                     },
                 .context = &seen,
                 .argument = i});
  stream->synchronize();
  ASSERT_EQ(seen.size(), 1000u);
  for (std::uint64_t i = 0; i < seen.size(); ++i) EXPECT_EQ(seen[i], i);
}

TEST_P(StreamKinds, ADefaultEventAndOnesOwnAreNoWait) {
  const auto stream = make();
  stream->wait({});
  stream->run(closures_.task([] {}));
  stream->wait(stream->record());
  EXPECT_NO_THROW(stream->synchronize());
  EXPECT_TRUE(stream->done(stream->record()));
}

TEST_P(StreamKinds, AFailureSkipsTheRestAndReachesWaiters) {
  const auto stream = make();
  const auto other = device_->make_stream({.name = "other"});
  bool later = false;
  stream->run(closures_.task([] {}));
  const Event before = stream->record();
  stream->synchronize();
  try {
    stream->run(closures_.task([] { throw UsageError("task 2"); }));
    EXPECT_FALSE(GetParam()) << "on the caller, run() throws";
  } catch (const UsageError&) {
    EXPECT_TRUE(GetParam());
  }
  stream->run(closures_.task([&] { later = true; }));
  const Event after = stream->record();
  EXPECT_THROW(stream->synchronize(), UsageError);
  EXPECT_THROW(stream->synchronize(after), UsageError);
  EXPECT_NO_THROW(stream->synchronize(before)) << "an event before the failure is done";
  EXPECT_TRUE(stream->done(after));
  EXPECT_FALSE(later);
  EXPECT_TRUE(device_->failure().failed());
  EXPECT_EQ(device_->failure().message(), "task 2");
  other->wait(after);
  other->run(closures_.task([&] { later = true; }));
  EXPECT_THROW(other->synchronize(), UsageError);
  EXPECT_FALSE(later);
}

INSTANTIATE_TEST_SUITE_P(Kinds, StreamKinds, testing::Bool(),
                         [](const auto& kind) { return kind.param ? "on_caller" : "thread"; });

class Streams : public testing::Test {
 protected:
  std::unique_ptr<Device> device_ = make_cpu_device({});
  Closures closures_;
};

TEST_F(Streams, OnCallerRunsAtOnceOnTheCaller) {
  const auto stream = device_->make_stream({.name = "compute", .on_caller = true});
  std::thread::id ran;
  stream->run(closures_.task([&] { ran = std::this_thread::get_id(); }));
  EXPECT_EQ(ran, std::this_thread::get_id());
}

TEST_F(Streams, AThreadRunsBesideTheCaller) {
  const auto stream = device_->make_stream({.name = "gather"});
  Door door;
  std::thread::id ran;
  stream->run(closures_.task([&] { door.pass(), ran = std::this_thread::get_id(); }));
  const Event event = stream->record();
  EXPECT_FALSE(stream->done(event));
  door.open = true;
  stream->synchronize(event);
  EXPECT_NE(ran, std::this_thread::get_id());
}

TEST_F(Streams, EventsOrderAcrossStreams) {
  // A chain that hops over four streams: each adds to a plain integer, which only the events protect.
  std::vector<std::unique_ptr<Stream>> streams;
  for (int i = 0; i < 4; ++i)
    streams.push_back(device_->make_stream({.name = "lane", .on_caller = i == 0, .capacity = 16}));
  std::mt19937 random(7);
  std::uint64_t value = 0;
  Event last;
  for (std::uint64_t i = 0; i < 2000; ++i) {
    Stream& stream = *streams[random() % streams.size()];
    stream.wait(last);
    stream.run({.run =
                    [](void* context, std::uint64_t argument) {
                      auto& number = *static_cast<std::uint64_t*>(context);
                      EXPECT_EQ(number, argument);
                      number = argument + 1;
                    },
                .context = &value,
                .argument = i});
    last = stream.record();
  }
  last.stream->synchronize(last);
  EXPECT_EQ(value, 2000u);
}

TEST_F(Streams, AFullRingBlocksTheSubmitterOnly) {
  const auto stream = device_->make_stream({.name = "lane", .capacity = 2});
  Door door;
  int ran = 0;
  stream->run(closures_.task([&] { door.pass(); }));
  stream->run(closures_.task([&] { ++ran; }));
  const auto start = Clock::now();
  std::thread opener([&] {
    std::this_thread::sleep_for(milliseconds(20));
    door.open = true;
  });
  stream->run(closures_.task([&] { ++ran; }));
  EXPECT_GE(Clock::now() - start, milliseconds(20));
  opener.join();
  stream->synchronize();
  EXPECT_EQ(ran, 2);
}

TEST_F(Streams, ManyThreadsMayWaitForOneStream) {
  const auto stream = device_->make_stream({.name = "lane"});
  Door door;
  int value = 0;
  stream->run(closures_.task([&] { door.pass(), value = 42; }));
  const Event event = stream->record();
  std::vector<std::thread> waiters;
  for (int i = 0; i < 6; ++i)
    waiters.emplace_back([&] {
      event.stream->synchronize(event);
      EXPECT_EQ(value, 42);
    });
  door.open = true;
  for (auto& waiter : waiters) waiter.join();
}

TEST_F(Streams, AWaitEndsAtTheDeadlineNamingTheStream) {
  const auto device = make_cpu_device({.rank = 3, .deadline = milliseconds(50)});
  const auto stream = device->make_stream({.name = "gather"});
  Door door;
  stream->run(closures_.task([&] { door.pass(); }));
  const auto start = Clock::now();
  try {
    stream->synchronize();
    ADD_FAILURE() << "did not throw";
  } catch (const EnvironmentError& error) {
    const std::string text = error.what();
    EXPECT_NE(text.find("rank 3: stream 'gather'"), std::string::npos) << text;
  }
  EXPECT_GE(Clock::now() - start, milliseconds(50));
  EXPECT_LT(Clock::now() - start, milliseconds(20'000));
  door.open = true;
  stream->synchronize();
}

TEST_F(Streams, TheFlagEndsEveryWaitWithinMilliseconds) {
  const auto gather = device_->make_stream({.name = "gather"});
  const auto reduce = device_->make_stream({.name = "reduce"});
  Door door;
  gather->run(closures_.task([&] { door.pass(); }));
  reduce->wait(gather->record());  // a thread that waits
  Clock::time_point set;
  std::thread failer([&] {
    std::this_thread::sleep_for(milliseconds(30));
    set = Clock::now();
    device_->failure().set("a peer failed");
  });
  EXPECT_THROW(gather->synchronize(), Error);  // the caller waits
  failer.join();
  EXPECT_THROW(reduce->synchronize(), Error);
  EXPECT_LT(Clock::now() - set, milliseconds(20'000)) << "the deadline is 600 s";
  const auto compute = device_->make_stream({.name = "compute", .on_caller = true});
  EXPECT_THROW(compute->run(closures_.task([] { ADD_FAILURE() << "ran on a failed rank"; })), Error);
  door.open = true;
}

TEST_F(Streams, TheDestructorSkipsWhatHasNotBegunAndDoesNotHang) {
  auto gather = device_->make_stream({.name = "gather"});
  auto reduce = device_->make_stream({.name = "reduce"});
  Door door;
  bool later = false;
  gather->run(closures_.task([&] { door.pass(); }));
  const Event never = gather->record();
  reduce->wait(never);  // would last until the door opens
  reduce->run(closures_.task([&] { later = true; }));
  reduce.reset();
  EXPECT_FALSE(later);
  EXPECT_TRUE(device_->failure().failed());
  EXPECT_NE(device_->failure().message().find("'reduce' was destroyed"), std::string::npos);
  door.open = true;
  gather.reset();
}

TEST_F(Streams, ADestructorWithoutWorkFailsNothing) {
  auto stream = device_->make_stream({.name = "lane"});
  stream->run(closures_.task([] {}));
  stream->synchronize();
  stream.reset();
  EXPECT_FALSE(device_->failure().failed());
}

TEST_F(Streams, WorkAtEveryWaitingPolicy) {
  for (Waiting waiting : {Waiting::automatic, Waiting::spin, Waiting::yield, Waiting::block}) {
    const auto device = make_cpu_device({.waiting = waiting, .busy_threads = 2});
    const auto stream = device->make_stream({.name = "lane"});
    int value = 0;
    for (int i = 0; i < 200; ++i) {
      stream->run(
          {.run = [](void* context, std::uint64_t) { ++*static_cast<int*>(context); }, .context = &value});
      if (i % 3 == 0) stream->synchronize();
    }
    stream->synchronize();
    EXPECT_EQ(value, 200);
  }
}

}  // namespace
}  // namespace tessera
