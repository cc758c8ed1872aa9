// Fewer hardware queues than streams, because the environment asks for fewer or because the process made its
// context before Tessera could ask. A process asks once, so each test runs in a process of its own.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <thread>

#include "src/device/cuda_queues.h"
#include "tests/emulated_cuda/emulator.h"
#include "tests/emulated_cuda/gpu_rank.h"

namespace tessera::emulated_cuda {
namespace {

constexpr const char* kVariable = "CUDA_DEVICE_MAX_CONNECTIONS";

class HardwareQueues : public testing::Test {
 protected:
  void SetUp() override {
    GTEST_FLAG_SET(death_test_style, "threadsafe");
    unsetenv(kVariable);
  }
};

// Makes a device with streams, waits for a thread of the host on one of them, and prints who waited and the
// notices.
[[noreturn]] void work_with(int ordinal, int streams) {
  const std::unique_ptr<Device> device = make_cuda_device({.ordinal = ordinal});
  const auto host = device->make_host_stream({.name = "host", .cpus = {}});
  std::vector<std::unique_ptr<Stream>> all;
  while (static_cast<int>(all.size()) < streams)
    all.push_back(device->make_stream({.name = "lane", .cpus = {}}));
  const int before = host_waits();
  host->run(
      {.run = [](void*, std::uint64_t) { std::this_thread::sleep_for(std::chrono::milliseconds(100)); }});
  all[0]->wait(host->record());
  std::fprintf(stderr, "%s waited;", host_waits() > before ? "the stream" : "the caller");
  for (const std::string& notice : device->notices()) std::fprintf(stderr, " %s.", notice.c_str());
  std::fprintf(stderr, " That is all");
  std::_Exit(0);
}

TEST_F(HardwareQueues, AreThirtyTwoWhereTheProcessAsksInTime) {
  EXPECT_EXIT(
      {
        cudaSetDevice(4);  // another GPU's context
        work_with(5, 32);
      },
      testing::ExitedWithCode(0), "^the stream waited; That is all");
}

TEST_F(HardwareQueues, AreEightWhereAContextWasThereBefore) {
  EXPECT_EXIT(
      {
        cudaSetDevice(5);
        work_with(5, 9);
      },
      testing::ExitedWithCode(0),
      "^the caller waited; GPU 5: 9 streams share 8 hardware queues and wait for each other: "
      "CUDA_DEVICE_MAX_CONNECTIONS was not in the environment when this process made its context on the GPU, "
      "before it made a device of Tessera's; set CUDA_DEVICE_MAX_CONNECTIONS=32 before the process starts; "
      "till "
      "then the calling thread waits for threads of the host in place of streams. That is all");
}

TEST_F(HardwareQueues, SufficeWhereTheStreamsAreAsMany) {
  EXPECT_EXIT(
      {
        cudaSetDevice(5);
        work_with(5, 8);
      },
      testing::ExitedWithCode(0), "^the stream waited; That is all");
}

TEST_F(HardwareQueues, AreAsManyAsTheEnvironmentSays) {
  EXPECT_EXIT(
      {
        setenv(kVariable, "2", 1);
        work_with(5, 3);
      },
      testing::ExitedWithCode(0),
      "^the caller waited; GPU 5: 3 streams share 2 hardware queues and wait for each other: "
      "CUDA_DEVICE_MAX_CONNECTIONS is '2' in the environment; set CUDA_DEVICE_MAX_CONNECTIONS=32");
  EXPECT_EXIT(
      {
        cudaSetDevice(5);  // made with it
        setenv(kVariable, "9", 1);
        work_with(5, 9);
      },
      testing::ExitedWithCode(0), "^the stream waited; That is all");
}

TEST_F(HardwareQueues, OfNoNumberAreTheDriversOwn) {
  EXPECT_EXIT(
      {
        setenv(kVariable, "many", 1);
        std::fprintf(stderr, "%d %s", device::hardware_queues(0).count,
                     device::hardware_queues(0).why.c_str());
        std::_Exit(0);
      },
      testing::ExitedWithCode(0), "^8 CUDA_DEVICE_MAX_CONNECTIONS is 'many' in the environment");
}

}  // namespace
}  // namespace tessera::emulated_cuda
