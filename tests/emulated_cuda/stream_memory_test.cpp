// Drivers that lack waits and writes of words by streams, or get them wrong: what takes their place, and what
// is said.
#include <gtest/gtest.h>

#include <thread>

#include "tessera/error.h"
#include "tessera/machine.h"
#include "tests/emulated_cuda/gpu_rank.h"

namespace tessera::emulated_cuda {
namespace {

using contract::contains;
using std::chrono::milliseconds;

struct Fault {
  const char* name;
  StreamMemory how;
  const char* why;
};
void PrintTo(const Fault& fault, std::ostream* out) { *out << fault.name; }

class WithoutStreamMemory : public testing::TestWithParam<Fault> {
 protected:
  void SetUp() override { set_stream_memory(GetParam().how); }
  void TearDown() override { set_stream_memory(StreamMemory::works); }
};

constexpr milliseconds kDeadline{300};

void write_late(void* to, std::uint64_t value) {
  std::this_thread::sleep_for(milliseconds(2));
  *static_cast<std::uint64_t*>(to) = value;
}

// The host's part reads what the GPU brought down, and the GPU what the host made of it.
void add_late(void* of, std::uint64_t value) {
  std::this_thread::sleep_for(milliseconds(2));
  *static_cast<std::uint64_t*>(of) += value;
}

TEST_P(WithoutStreamMemory, StreamsAndThreadsOfTheHostKeepTheirOrder) {
  const std::unique_ptr<Device> device = make_cuda_device({.deadline = kDeadline});
  const auto host = device->make_host_stream({.name = "host", .cpus = {}});
  const auto gpu = device->make_stream({.name = "gpu", .cpus = {}});
  const Arena pinned = device->make_host_arena(8), there = device->make_arena(8);
  const int waits = host_waits(), functions = host_functions();
  std::uint64_t seen = 0;
  host->run({.run = &write_late, .context = pinned.base(), .argument = 1});
  for (std::uint64_t turn = 1; turn <= 10; ++turn) {
    gpu->wait(host->record());
    device->copy(*gpu, there.base(), pinned.base(), 8);
    device->fill(*gpu, pinned.base(), 0, 8);
    device->copy(*gpu, pinned.base(), there.base(), 8);
    host->wait(gpu->record());
    host->run({.run = &add_late, .context = pinned.base(), .argument = turn});
  }
  gpu->wait(host->record());
  device->copy(*gpu, &seen, pinned.base(), 8);
  gpu->synchronize();
  EXPECT_EQ(seen, 1U + 55U);
  EXPECT_EQ(host_waits(), waits) << "no stream waits";
  EXPECT_GE(host_functions() - functions, 10);
  EXPECT_FALSE(device->failure().failed()) << device->failure().message();
}

TEST_P(WithoutStreamMemory, IsSaid) {
  EXPECT_EQ(read_stream_waits(3).why_not.empty(), false);
  const std::unique_ptr<Device> device = make_cuda_device({.ordinal = 3, .deadline = kDeadline});
  const std::vector<std::string> notices = device->notices();
  ASSERT_EQ(notices.size(), 1U);
  EXPECT_TRUE(contains(notices[0], "GPU 3: the calling thread waits for threads of the host")) << notices[0];
  EXPECT_TRUE(contains(notices[0], GetParam().why)) << notices[0];
  EXPECT_FALSE(device->failure().failed()) << device->failure().message();
}

// The watch hears of calls by words, too.
TEST_P(WithoutStreamMemory, WorkThatDoesNotEndOnTheGpuIsNamed) {
  std::vector<std::string> messages;
  const auto rank_main = [](Communicator host) {
    GpuRank rank(host);
    const auto stream = rank.make_stream("gather");
    const Arena arena = rank.device->make_arena(4096);
    Communicator lane = rank.world.duplicate("gather");
    lane.bind(*stream);
    const auto gather = [&](const char* unit) {
      lane.all_gather(arena.base() + 256 * lane.rank(), arena.base(), 256, {.unit = unit});
    };
    gather("block.0");
    stream->synchronize();
    hold_behind_next_mark(static_cast<cudaStream_t>(stream->native()));
    gather("block.1");
    lane.set_deadline(milliseconds(300));
    stream->synchronize();
  };
  EXPECT_THROW(run_local(2, {}, rank_main, &messages), Error);
  EXPECT_TRUE(contains(messages[0],
                       "all_gather #2 of unit 'block.1' on 'gather': the GPUs have not completed it within"))
      << messages[0];
}

TEST_P(WithoutStreamMemory, AThreadThatFailsEndsTheCallersWait) {
  const std::unique_ptr<Device> device = make_cuda_device({});
  const auto host = device->make_host_stream({.name = "host", .cpus = {}});
  const auto gpu = device->make_stream({.name = "gpu", .cpus = {}});
  host->run({.run = [](void*, std::uint64_t) {
    std::this_thread::sleep_for(milliseconds(5));
    throw EnvironmentError("the disk is full");
  }});
  EXPECT_THROW(gpu->wait(host->record()), EnvironmentError);
}

INSTANTIATE_TEST_SUITE_P(
    Drivers, WithoutStreamMemory,
    testing::Values(Fault{"Missing", StreamMemory::missing, "the NVIDIA driver has no cuStreamWriteValue32"},
                    Fault{"Refused", StreamMemory::refused,
                          "cuStreamWriteValue32 failed: cudaErrorNotSupported"},
                    Fault{"LosesWrites", StreamMemory::loses_writes,
                          "a cuStreamWriteValue32 did not arrive within 300 ms"},
                    Fault{"LosesWaits", StreamMemory::loses_waits, "a cuStreamWaitValue32 did not wait"}),
    [](const testing::TestParamInfo<Fault>& test) { return test.param.name; });

TEST(StreamMemory, IsUsedWhereItWorksAndTriedOnceForAGpu) {
  const std::unique_ptr<Device> device = make_cuda_device({.ordinal = 2});
  EXPECT_EQ(device->notices(), std::vector<std::string>());
  const int before = host_waits();
  const std::unique_ptr<Device> again = make_cuda_device({.ordinal = 2});
  EXPECT_EQ(host_waits(), before);
  EXPECT_EQ(read_stream_waits(2).why_not, "");
}

}  // namespace
}  // namespace tessera::emulated_cuda
