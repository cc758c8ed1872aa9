// Streams of a GPU that wait for threads of the host. That nobody else waits meanwhile only a GPU can show.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <thread>
#include <vector>

#include "src/device/uploads.h"
#include "tests/emulated_cuda/gpu_rank.h"

namespace tessera::emulated_cuda {
namespace {

using std::chrono::milliseconds;

struct Waiting {
  std::unique_ptr<Device> device = make_cuda_device({});
  std::unique_ptr<Stream> host = device->make_host_stream({.name = "host", .cpus = {}});
  std::unique_ptr<Stream> gpu = device->make_stream({.name = "gpu", .cpus = {}});
};

void write_late(void* to, std::uint64_t value) {
  std::this_thread::sleep_for(milliseconds(5));
  *static_cast<std::uint64_t*>(to) = value;
}

TEST(HostWait, WhatComesBehindItSeesWhatTheHostWrote) {
  Waiting on;
  const Arena host = on.device->make_host_arena(8), there = on.device->make_arena(8);
  const int before = host_waits();
  for (std::uint64_t value = 1; value <= 20; ++value) {
    std::uint64_t seen = 0;
    on.host->run({.run = &write_late, .context = host.base(), .argument = value});
    on.gpu->wait(on.host->record());
    on.device->copy(*on.gpu, there.base(), host.base(), 8);
    on.device->copy(*on.gpu, &seen, there.base(), 8);
    on.gpu->synchronize();
    EXPECT_EQ(seen, value);
  }
  EXPECT_EQ(host_waits() - before, 20) << "the GPU's, not the caller's";
}

// The GPU fills in the order of its streams, which threads of the host are not in.
TEST(HostWait, WhatTheHostWroteIsNotPoisonedByTheGpu) {
  const std::unique_ptr<Device> device = make_cuda_device({.fill_poisoned = true});
  Arena host = device->make_host_arena(8), there = device->make_arena(8);
  const auto stream = device->make_stream({.name = "gpu", .cpus = {}});
  for (Arena* arena : {&host, &there}) arena->poison(0, 8);
  std::byte seen{0};
  device->copy(*stream, &seen, there.base(), 1);
  stream->synchronize();
  EXPECT_EQ(seen, std::byte{0xFF});
  EXPECT_EQ(host.base()[0], std::byte{0});
}

// Nor does the host wait for a GPU that has not come to the copy, until both halves are taken.
TEST(HostWait, UploadsReadTheHostBeforeTheGpuIsThere) {
  const Waiting on;
  constexpr std::int64_t kPiece = device::Uploads::kPieceBytes;
  const Arena there = on.device->make_arena(5 * kPiece);
  device::Uploads uploads(*on.device, *on.gpu);
  std::vector<std::byte> sent(3 * kPiece), seen(5 * kPiece);
  const auto native = static_cast<cudaStream_t>(on.gpu->native());
  const int before = pageable_copies();
  hold(native);
  for (const int piece : {0, 1}) {
    std::fill_n(sent.begin(), kPiece, static_cast<std::byte>(piece + 1));
    uploads.copy(there.base() + piece * kPiece, sent.data(), kPiece);
  }
  for (std::int64_t i = 0; i < 3 * kPiece; ++i)
    sent[static_cast<std::size_t>(i)] = static_cast<std::byte>(i / kPiece + 3);
  std::atomic<bool> returned = false;
  std::thread sender([&] {
    uploads.copy(there.base() + 2 * kPiece, sent.data(), 3 * kPiece - 1);
    returned = true;
  });
  std::this_thread::sleep_for(milliseconds(20));
  EXPECT_FALSE(returned) << "what the GPU has not read is written over";
  release(native);
  sender.join();
  std::ranges::fill(sent, std::byte{0xEE});
  EXPECT_EQ(pageable_copies(), before);
  on.device->copy(*on.gpu, seen.data(), there.base(), 5 * kPiece);
  on.gpu->synchronize();
  for (std::int64_t piece = 0; piece < 5; ++piece)
    EXPECT_EQ(std::count(seen.begin() + piece * kPiece, seen.begin() + (piece + 1) * kPiece,
                         static_cast<std::byte>(piece + 1)),
              kPiece - (piece == 4 ? 1 : 0));
  EXPECT_EQ(seen.back(), std::byte{0}) << "not sent";
}

// While a thread loads a kernel, no other is let into the driver, and that until the GPU is idle.
TEST(HostWait, AKernelIsLoadedWhileTheGpuWaitsForAThreadThatWaitsForIt) {
  const Waiting on;
  const auto other = on.device->make_stream({.name = "other", .cpus = {}});
  const Arena host = on.device->make_host_arena(8), there = on.device->make_arena(8);
  const auto native = static_cast<cudaStream_t>(on.gpu->native());
  hold(native);
  on.device->fill(*on.gpu, there.base(), 0, 8);
  on.host->wait(on.gpu->record());
  on.host->run({.run = &write_late, .context = host.base(), .argument = 7});
  other->wait(on.host->record());
  on.device->copy(*other, there.base(), host.base(), 8);
  std::thread releases([&] {
    std::this_thread::sleep_for(milliseconds(20));
    release(native);
  });
  load(reinterpret_cast<const void*>(&write_late), static_cast<cudaStream_t>(other->native()));
  releases.join();
  std::uint64_t seen = 0;
  on.device->copy(*other, &seen, there.base(), 8);
  other->synchronize();
  EXPECT_EQ(seen, 7U);
}

TEST(HostWait, AThreadWaitsForWhatWasRecordedBeforeThereWasOne) {
  const auto device = make_cuda_device({.deadline = std::chrono::seconds(20)});
  const auto gpu = device->make_stream({.name = "gpu", .cpus = {}});
  const auto native = static_cast<cudaStream_t>(gpu->native());
  hold(native);
  const Event before = gpu->record();
  const auto host = device->make_host_stream({.name = "host", .cpus = {}});
  const Event after = gpu->record();
  for (const Event event : {before, after}) host->wait(event);
  const Event waited = host->record();
  std::this_thread::sleep_for(milliseconds(20));
  EXPECT_FALSE(host->done(waited));
  release(native);
  host->synchronize(waited);
  EXPECT_FALSE(device->failure().failed());
}

TEST(HostWait, NothingIsWaitedForThatIsDone) {
  Waiting on;
  on.host->synchronize();
  const int before = host_waits();
  on.gpu->wait(on.host->record());
  EXPECT_EQ(host_waits(), before);
}

TEST(HostWait, AThreadThatFailsLeavesNoGpuWaiting) {
  Waiting on;
  on.host->run({.run = [](void*, std::uint64_t) {
    std::this_thread::sleep_for(milliseconds(5));
    throw EnvironmentError("the disk is full");
  }});
  on.gpu->wait(on.host->record());
  EXPECT_THROW(on.gpu->synchronize(), EnvironmentError);
}

TEST(HostWait, AThreadThatIsEndedLeavesNoGpuWaiting) {
  Waiting on;
  const int before = host_waits();
  on.host->run({.run = [](void*, std::uint64_t) { std::this_thread::sleep_for(milliseconds(20)); }});
  for (int i = 0; i < 10; ++i) on.host->run({.run = [](void*, std::uint64_t) {}});
  std::thread other([&] { on.gpu->wait(on.host->record()); });
  while (host_waits() == before) std::this_thread::yield();
  on.host.reset();  // with ten tasks to go
  other.join();
  EXPECT_TRUE(on.device->failure().failed());
}

// Each call of CUDA makes a context on the thread's current GPU, the first one unless it says which: hundreds
// of megabytes there, for each rank.
TEST(HostWait, AThreadOfTheHostAsksTheGpuOfItsRank) {
  const int before = calls_on_another_gpu();
  const std::unique_ptr<Device> device = make_cuda_device({.ordinal = 3});
  {
    const auto host = device->make_host_stream({.name = "host", .cpus = {}});
    const auto gpu = device->make_stream({.name = "gpu", .cpus = {}});
    const auto native = static_cast<cudaStream_t>(gpu->native());
    const auto marks = device->make_marks(2);
    marks->begin(*gpu);
    for (std::size_t slot : {0, 1}) marks->mark(slot, *gpu);
    gpu->synchronize();
    hold(native);
    host->wait(gpu->record());
    std::this_thread::sleep_for(milliseconds(20));
    release(native);
    host->synchronize();
    const auto anybody = [&] {
      Arena arena = device->make_host_arena(8);
      device->copy(*gpu, arena.base(), arena.base() + 4, 4);
      gpu->synchronize();
      EXPECT_GE(marks->us(1) - marks->us(0), 0);
    };
    std::thread(anybody).join();
    EXPECT_FALSE(device->failure().failed()) << device->failure().message();
  }
  EXPECT_EQ(calls_on_another_gpu(), before);
}

}  // namespace
}  // namespace tessera::emulated_cuda
