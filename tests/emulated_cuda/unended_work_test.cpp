// A GPU whose work does not end holds up no destructor: within the deadline they return, its memory stays,
// and the rank's failure says so.
#include <gtest/gtest.h>

#include <optional>
#include <thread>

#include "src/device/cuda_work.h"
#include "tessera/machine.h"
#include "tests/emulated_cuda/gpu_rank.h"
#include "tests/emulated_cuda/stream_work.h"

namespace tessera::emulated_cuda {
namespace {

using contract::contains;
using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

constexpr milliseconds kDeadline{200};
constexpr int kGpu = 7;  // no other test's: what stays there is counted

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}
cudaStream_t native(const Stream& stream) { return static_cast<cudaStream_t>(stream.native()); }

// Ends within the test, so that the next one finds the GPU idle.
class UnendedWork : public testing::Test {
 protected:
  void TearDown() override {
    if (held_) held_->release();
    wait_for_gpu(kGpu, "a test");
    EXPECT_EQ(nccl_memory().misuses.size(), misuses_) << nccl_memory().misuses.back();
  }
  std::unique_ptr<Device> device() const {
    return make_cuda_device({.ordinal = kGpu, .deadline = kDeadline});
  }
  void hold_work(const Stream& stream) {
    hold(native(stream));
    held_ = work_of(native(stream));
  }

  const std::size_t misuses_ = nccl_memory().misuses.size();  // a wait for good is one
  std::shared_ptr<StreamWork> held_;
};

TEST_F(UnendedWork, LeavesItsArenasWithinTheDeadlineAndSaysSo) {
  const std::int64_t before = read_gpu_used_bytes(kGpu);
  FailureFlag failure;
  const Clock::time_point start = Clock::now();
  {
    const auto on = device();
    failure = on->failure();
    std::optional<Arena> arena = on->make_arena(5000), host = on->make_host_arena(300);
    auto stream = on->make_stream({.name = "compute", .cpus = {}});
    hold_work(*stream);
    on->fill(*stream, arena->base(), 1, 5000);
    stream.reset();
    arena.reset();
    EXPECT_TRUE(
        contains(failure.message(),
                 "rank 0, GPU 7: the GPU has not ended its work within 200 ms; an arena of 5000 bytes "
                 "(4.88 KiB) is left to it"))
        << failure.message();
    host.reset();
  }
  EXPECT_LT(seconds_since(start), 3 * 0.2 + 1.5) << "one deadline a stream, and one for all memory";
  EXPECT_EQ(read_gpu_used_bytes(kGpu) - before, 8192);
}

TEST_F(UnendedWork, IsWaitedForWhereItEnds) {
  const std::int64_t before = read_gpu_used_bytes(kGpu);
  const auto on = make_cuda_device({.ordinal = kGpu, .deadline = std::chrono::seconds(20)});
  std::optional<Arena> arena = on->make_arena(5000);
  const auto stream = on->make_stream({.name = "compute", .cpus = {}});
  hold_work(*stream);
  on->fill(*stream, arena->base(), 1, 5000);
  std::thread releases([&] {
    std::this_thread::sleep_for(milliseconds(50));
    release(native(*stream));
  });
  arena.reset();
  releases.join();
  EXPECT_FALSE(on->failure().failed()) << on->failure().message();
  EXPECT_EQ(read_gpu_used_bytes(kGpu), before);
}

// Of a stream that is gone the work counts until it is done, and what is overdue is not waited for again.
TEST_F(UnendedWork, CountsBehindItsStreamsEnd) {
  const std::shared_ptr<device::CudaWork> work = device::CudaWork::of(kGpu);
  const auto on = device();
  auto stream = on->make_stream({.name = "compute", .cpus = {}});
  EXPECT_TRUE(work->wait());
  hold_work(*stream);
  stream.reset();
  Clock::time_point start = Clock::now();
  EXPECT_FALSE(work->wait());
  EXPECT_GE(seconds_since(start), 0.2);
  start = Clock::now();
  EXPECT_FALSE(work->wait());
  EXPECT_LT(seconds_since(start), 0.1);
  held_->release();
  wait_for_gpu(kGpu, "this test");
  start = Clock::now();
  while (!work->wait() && seconds_since(start) < 10)  // that it is done may be noted a moment later
    std::this_thread::sleep_for(milliseconds(1));
  EXPECT_TRUE(work->wait());
}

// By cudaFree where NCCL has no memory, which waits for all that the GPU does.
TEST_F(UnendedWork, OfAnotherLaneKeepsStagingMemoryUntilThatGoes) {
  refuse_nccl_memory(0);
  run_local(2, {}, [](Communicator host) {
    GpuRank rank(host);
    Communicator gather = rank.world.duplicate("gather");
    const auto gathers = rank.make_stream("gather");
    gather.bind(*gathers);
    const std::int64_t before = read_gpu_used_bytes(host.rank());
    host.barrier();
    {
      Communicator reduce = rank.world.duplicate("reduce");
      const auto reduces = rank.make_stream("reduce");
      reduce.bind(*reduces);
      hold(native(*gathers));
    }
    EXPECT_GT(read_gpu_used_bytes(host.rank()), before) << "not given back beside it";
    EXPECT_FALSE(rank.device->failure().failed()) << rank.device->failure().message();
    release(native(*gathers));
    host.barrier();
  });
  refuse_nccl_memory(-1);
  EXPECT_EQ(nccl_memory().arenas, 0);
}

}  // namespace
}  // namespace tessera::emulated_cuda
