// What needs a GPU. Each test skips, saying why, where none can be used.
#include <gtest/gtest.h>

#include <cstring>
#include <thread>

#include "tessera/device.h"
#include "tessera/error.h"
#include "tessera/machine.h"
#include "tests/device/cuda_kernels.h"

namespace tessera {
namespace {

using std::chrono::milliseconds;

class Cuda : public testing::Test {
 protected:
  void SetUp() override {
    const CudaMachine machine = read_cuda_machine();
    if (!machine.unusable.empty()) GTEST_SKIP() << machine.unusable;
    make({});
    cuda_test::load_kernels();
  }

  void make(const CudaDeviceOptions& options) { device_ = make_cuda_device(options); }
  std::unique_ptr<Stream> stream(const char* name, int capacity = 16, bool urgent = false) {
    return device_->make_stream({.name = name, .capacity = capacity, .cpus = {}, .urgent = urgent});
  }
  // What `function` enqueues, as a task of the stream.
  template <class Function>
  static void run(Stream& stream, Function function) {
    stream.run({.run = [](void* context, std::uint64_t) { (*static_cast<Function*>(context))(); },
                .context = &function});
  }
  template <class T>
  T read(Stream& stream, const void* from) {
    T value{};
    run(stream, [&] { device_->copy(stream, &value, from, sizeof value); });
    stream.synchronize();
    return value;
  }

  std::unique_ptr<Device> device_;
};

// Work that lasts while this is closed. Goes before its stream, whatever happens: opened, with the work done.
class Gate {
 public:
  explicit Gate(Device& device) : arena_(device.make_host_arena(sizeof(int))) {}
  ~Gate() {
    open();
    if (held_ == nullptr) return;
    for (const Event last = held_->record(); !held_->done(last);) std::this_thread::yield();
  }
  void open() { *flag() = 1; }
  void hold(Stream& stream) {
    held_ = &stream;
    cuda_test::enqueue_hold(stream.native(), flag());
  }

 private:
  volatile int* flag() const { return reinterpret_cast<volatile int*>(arena_.base()); }
  Arena arena_;
  Stream* held_ = nullptr;
};

// A thread of the host that waits until it is told to write.
struct Writer {
  std::atomic<bool> may{false};
  int* to = nullptr;
  static void write(void* context, std::uint64_t value) {
    auto& self = *static_cast<Writer*>(context);
    while (!self.may.load()) std::this_thread::yield();
    *self.to = static_cast<int>(value);
  }
};

TEST_F(Cuda, WaitsForAThreadOfTheHostWithoutHoldingUpTheCaller) {
  const Arena host = device_->make_host_arena(sizeof(int)), there = device_->make_arena(sizeof(int));
  const auto thread = device_->make_host_stream({.name = "host", .cpus = {}});
  const auto gpu = stream("gpu");
  for (const int value : {7, 8, 9}) {
    Writer writer{.to = reinterpret_cast<int*>(host.base())};
    thread->run({.run = &Writer::write, .context = &writer, .argument = static_cast<std::uint64_t>(value)});
    gpu->wait(thread->record());
    run(*gpu, [&] { device_->copy(*gpu, there.base(), host.base(), sizeof(int)); });
    const Event copied = gpu->record();
    std::this_thread::sleep_for(milliseconds(20));
    EXPECT_FALSE(gpu->done(copied)) << "the host has not written yet";
    writer.may.store(true);
    gpu->synchronize(copied);
    EXPECT_EQ(read<int>(*gpu, there.base()), value);
    thread->synchronize();
  }
}

// The driver may let no other call in while it loads a kernel, which it does when the GPU is idle.
TEST_F(Cuda, AKernelIsLoadedWhileTheGpuWaitsForAThreadThatWaitsForIt) {
  const Arena host = device_->make_host_arena(sizeof(int)), there = device_->make_arena(512);
  const auto thread = device_->make_host_stream({.name = "host", .cpus = {}});
  const auto first = stream("first"), second = stream("second");
  auto* const from = reinterpret_cast<int*>(there.base());
  auto* const to = reinterpret_cast<int*>(there.base() + 256);
  Writer writer{.to = reinterpret_cast<int*>(host.base())};
  writer.may.store(true);
  Gate gate(*device_);
  run(*first, [&] { gate.hold(*first); });
  thread->wait(first->record());
  thread->run({.run = &Writer::write, .context = &writer, .argument = 40});
  second->wait(thread->record());
  std::thread opens([&] {
    std::this_thread::sleep_for(milliseconds(50));
    gate.open();
  });
  run(*second, [&] {
    device_->copy(*second, from, host.base(), sizeof(int));
    cuda_test::enqueue_after_next(second->native(), to, from);
  });
  opens.join();
  EXPECT_EQ(read<int>(*second, to), 42);
}

TEST_F(Cuda, AThreadOfTheHostThatFailsLeavesNoGpuWaiting) {
  const auto thread = device_->make_host_stream({.name = "host", .cpus = {}});
  const auto gpu = stream("gpu");
  thread->run({.run = [](void*, std::uint64_t) {
    std::this_thread::sleep_for(milliseconds(20));
    throw EnvironmentError("the disk is full");
  }});
  gpu->wait(thread->record());
  EXPECT_THROW(gpu->synchronize(), EnvironmentError);
}

TEST_F(Cuda, DescribesEachGpu) {
  const CudaMachine machine = read_cuda_machine();
  EXPECT_FALSE(machine.driver.empty());
  ASSERT_FALSE(machine.gpus.empty());
  for (const CudaGpu& gpu : machine.gpus) {
    EXPECT_FALSE(gpu.name.empty());
    EXPECT_GT(gpu.memory_bytes, std::int64_t{1} << 30);
    EXPECT_GE(gpu.major, 7);
    EXPECT_GT(gpu.multiprocessors, 0);
  }
  EXPECT_EQ(device_->type(), DeviceType::cuda);
  EXPECT_NE(device_->name().find(machine.gpus[0].name), std::string::npos) << device_->name();
}

TEST_F(Cuda, NamesTheGpusThatThereAre) {
  const int gpus = static_cast<int>(read_cuda_machine().gpus.size());
  for (const int ordinal : {-1, gpus}) {
    try {
      make_cuda_device({.rank = 2, .ordinal = ordinal});
      FAIL() << "made GPU " << ordinal;
    } catch (const EnvironmentError& error) {
      EXPECT_NE(std::string(error.what()).find("rank 2: GPU " + std::to_string(ordinal)), std::string::npos)
          << error.what();
    }
  }
}

TEST_F(Cuda, ArenasAreZeroAlignedAndOfTheirBytes) {
  const auto lane = stream("lane");
  for (const std::int64_t bytes : {1, 4096 + 13, 3 << 20}) {
    for (const bool of_host : {false, true}) {
      const Arena arena = of_host ? device_->make_host_arena(bytes) : device_->make_arena(bytes);
      EXPECT_EQ(arena.bytes(), bytes);
      EXPECT_EQ(reinterpret_cast<std::uintptr_t>(arena.base()) % (of_host ? 4096u : 256u), 0u);
      std::vector<char> seen(static_cast<std::size_t>(bytes), 'x');
      run(*lane, [&] { device_->copy(*lane, seen.data(), arena.base(), bytes); });
      lane->synchronize();
      EXPECT_EQ(seen, std::vector<char>(seen.size(), 0));
    }
  }
  EXPECT_EQ(device_->make_arena(0).base(), nullptr);
  EXPECT_THROW(device_->make_arena(-1), UsageError);
}

TEST_F(Cuda, AnArenaThatDoesNotFitNamesItsBytes) {
  try {
    device_->make_arena(std::int64_t{1} << 50);
    FAIL() << "took a PiB";
  } catch (const EnvironmentError& error) {
    const std::string message = error.what();
    for (const char* part : {"rank 0, GPU 0", "1125899906842624 bytes", "are free", "cudaMalloc failed",
                             "cudaErrorMemoryAllocation"})
      EXPECT_NE(message.find(part), std::string::npos) << part << " is not in: " << message;
  }
  EXPECT_EQ(device_->make_arena(1 << 20).bytes(), 1 << 20) << "the refusal has consequences";
}

TEST_F(Cuda, CopiesAndFillsInTheOrderOfTheStream) {
  constexpr std::int64_t kBytes = (1 << 20) + 5;
  const Arena first = device_->make_arena(kBytes), second = device_->make_arena(kBytes);
  const Arena in = device_->make_host_arena(kBytes), out = device_->make_host_arena(kBytes);
  for (std::int64_t i = 0; i < kBytes; ++i) in.base()[i] = static_cast<std::byte>(i % 251);
  const auto lane = stream("lane");
  run(*lane, [&] {
    device_->copy(*lane, first.base(), in.base(), kBytes);
    device_->copy(*lane, second.base(), first.base(), kBytes);
    device_->fill(*lane, first.base(), 0, kBytes);
    device_->fill(*lane, second.base() + 3, 7, 4);
    device_->copy(*lane, out.base(), second.base(), kBytes);
  });
  lane->synchronize();
  std::memset(in.base() + 3, 7, 4);
  EXPECT_EQ(std::memcmp(in.base(), out.base(), kBytes), 0);
}

TEST_F(Cuda, RunReturnsBeforeTheWorkIsDone) {
  const auto lane = stream("lane");
  Gate gate(*device_);
  run(*lane, [&] { gate.hold(*lane); });
  const Event event = lane->record();
  EXPECT_FALSE(lane->done(event));
  gate.open();
  lane->synchronize(event);
  EXPECT_TRUE(lane->done(event));
}

TEST_F(Cuda, AWaitOrdersStreamsAndHoldsUpNothingElse) {
  const Arena cells = device_->make_arena(4 * sizeof(int));
  int* const cell = reinterpret_cast<int*>(cells.base());
  const auto compute = stream("compute"), gather = stream("gather", 16, true), free = stream("free");
  Gate gate(*device_);
  run(*gather, [&] {
    gate.hold(*gather);
    cuda_test::enqueue_next(gather->native(), cell + 1, cell);
  });
  compute->wait(gather->record());
  run(*compute, [&] { cuda_test::enqueue_next(compute->native(), cell + 2, cell + 1); });
  const Event last = compute->record();
  run(*free, [&] { cuda_test::enqueue_next(free->native(), cell + 3, cell); });
  free->synchronize();
  EXPECT_FALSE(compute->done(last)) << "it did not wait";
  gate.open();
  compute->synchronize(last);
  EXPECT_EQ(read<int>(*compute, cell + 2), 2);
  EXPECT_EQ(read<int>(*compute, cell + 3), 1);
}

TEST_F(Cuda, EventsOutlastTheirRing) {
  const Arena cells = device_->make_arena(sizeof(int));
  int* const cell = reinterpret_cast<int*>(cells.base());
  const auto lane = stream("lane", 3), other = stream("other", 3);
  const Event first = lane->record();
  for (int i = 0; i < 100; ++i) {
    Stream& now = i % 2 == 0 ? *lane : *other;
    Stream& then = i % 2 == 0 ? *other : *lane;
    run(now, [&] { cuda_test::enqueue_next(now.native(), cell, cell); });
    then.wait(now.record());
  }
  EXPECT_EQ(read<int>(*lane, cell), 100);
  EXPECT_TRUE(lane->done(first));
  lane->synchronize(first);
}

TEST_F(Cuda, StreamsOfTheCpuWaitForItsEvents) {
  const auto cpu = make_cpu_device({});
  const auto host = cpu->make_stream({.name = "host"});
  const auto lane = stream("lane");
  Gate gate(*device_);
  run(*lane, [&] { gate.hold(*lane); });
  host->wait(lane->record());
  const Event behind = host->record();
  std::this_thread::sleep_for(milliseconds(20));
  EXPECT_FALSE(host->done(behind));
  gate.open();
  host->synchronize(behind);
}

TEST_F(Cuda, ATaskThatThrowsFailsTheDevice) {
  const auto lane = stream("lane"), other = stream("other");
  const Event before = lane->record();
  EXPECT_THROW(run(*lane, [] { throw UsageError("task"); }), UsageError);
  bool later = false;
  run(*lane, [&] { later = true; });
  EXPECT_NO_THROW(lane->synchronize(before));
  EXPECT_THROW(lane->synchronize(), UsageError);
  EXPECT_THROW(other->wait(lane->record()), UsageError);
  EXPECT_FALSE(later);
  EXPECT_EQ(device_->failure().message(), "task");
}

TEST_F(Cuda, AWaitEndsAtTheDeadlineAndAtAFailureElsewhere) {
  make({.rank = 5, .deadline = milliseconds(50)});
  const auto lane = stream("lane");
  Gate gate(*device_);
  run(*lane, [&] { gate.hold(*lane); });
  try {
    lane->synchronize();
    FAIL() << "reached";
  } catch (const EnvironmentError& error) {
    const std::string message = error.what();
    EXPECT_NE(message.find("rank 5: stream 'lane'"), std::string::npos) << message;
  }
  device_->failure().set("elsewhere");
  try {
    lane->synchronize();
    FAIL() << "reached";
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "elsewhere");
  }
}

TEST_F(Cuda, PoisonFillsBetweenWhatCameBeforeAndAfter) {
  make({.fill_poisoned = true});
  Arena arena = device_->make_arena(1024);
  int* const cell = reinterpret_cast<int*>(arena.base());
  const auto lane = stream("lane");
  Gate gate(*device_);
  run(*lane, [&] {
    gate.hold(*lane);
    cuda_test::enqueue_next(lane->native(), cell, cell + 8);
  });
  arena.poison(0, 32);
  run(*lane, [&] { cuda_test::enqueue_next(lane->native(), cell + 1, cell + 8); });
  gate.open();
  EXPECT_EQ(read<int>(*lane, cell), -1);
  EXPECT_EQ(read<int>(*lane, cell + 1), 1);
  EXPECT_EQ(read<int>(*lane, cell + 8), 0);
}

// The process that ran the kernel has no GPU afterwards: it must be another one.
void run_trap() {
  const auto device = make_cuda_device({.rank = 3});
  const auto lane = device->make_stream({.name = "lane"});
  const auto other = device->make_stream({.name = "other"});
  lane->run({.run = [](void* stream, std::uint64_t) { cuda_test::enqueue_trap(stream); },
             .context = lane->native()});
  try {
    lane->synchronize();
  } catch (const EnvironmentError& error) {
    std::fprintf(stderr, "%s; failed %d\n", error.what(), device->failure().failed() ? 1 : 0);
    std::_Exit(7);
  }
  std::_Exit(0);
}

TEST_F(Cuda, AKernelThatFailsIsReported) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  // The next call meets it, where it is as late as that.
  EXPECT_EXIT(run_trap(), testing::ExitedWithCode(7),
              "rank 3, GPU 0: (a kernel or a copy|cudaEventRecord|cudaGetDevice) failed: .*; failed 1");
}

}  // namespace
}  // namespace tessera
