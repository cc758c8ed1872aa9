#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <limits>
#include <string>
#include <thread>

#include "src/device/memory_limits.h"
#include "tessera/device.h"
#include "tessera/error.h"
#include "tessera/machine.h"
#include "tests/trainer/temporary_folder.h"

namespace tessera {
namespace {

TEST(Machine, DescribesItself) {
  const Machine machine = read_machine();
  EXPECT_FALSE(machine.instruction_set.empty());
  EXPECT_GE(machine.cores, 1);
  EXPECT_LE(machine.cores, static_cast<int>(std::thread::hardware_concurrency()));
  EXPECT_GT(machine.available_bytes, 0);
  EXPECT_GE(machine.memory_bytes, machine.available_bytes);
}

// As a container's limits lie: what the tightest of the cgroups around a process leaves.
TEST(Machine, KeepsTheLimitsOfItsCgroups) {
  namespace fs = std::filesystem;
  const testing::TemporaryFolder folder;
  const fs::path root = folder.file("cgroup");
  const auto limit = [&](const fs::path& where, const char* most, const char* taken, const char* cached) {
    fs::create_directories(where);
    std::ofstream(where / "memory.max") << most;
    std::ofstream(where / "memory.current") << taken;
    std::ofstream(where / "memory.stat")
        << "anon 7\ninactive_file " << cached << "\nactive_file 3\nslab_reclaimable 2\nslab 9\n";
  };
  constexpr std::int64_t kNone = std::numeric_limits<std::int64_t>::max();
  EXPECT_EQ(device::cgroup_room(root, "/").bytes, kNone);
  limit(root / "a", "1000", "700", "50");
  EXPECT_EQ(device::cgroup_room(root, "/a").bytes, 355);
  limit(root / "a" / "b", "max", "600", "0");
  EXPECT_EQ(device::cgroup_room(root, "/a/b").bytes, 355) << "of the one around it";
  EXPECT_EQ(device::cgroup_room(root, "/a/b/not_there").bytes, 355);
  const std::uint64_t limiting = device::cgroup_room(root, "/a").limiting;
  EXPECT_NE(limiting, 0U);
  EXPECT_EQ(device::cgroup_room(root, "/a/b").limiting, limiting);
  limit(root / "a" / "c", "300", "400", "0");
  EXPECT_NE(device::cgroup_room(root, "/a/c").limiting, limiting);
  EXPECT_EQ(device::cgroup_room(root, "/a/c").bytes, 0);
  EXPECT_EQ(device::cgroup_room(root, "/").bytes, kNone);
}

TEST(Machine, KeepsTheLimitsOfCgroupsOfVersion1) {
  namespace fs = std::filesystem;
  const testing::TemporaryFolder folder;
  const fs::path root = folder.file("memory");
  const auto limit = [&](const fs::path& where, const char* most, const char* taken, const char* cached) {
    fs::create_directories(where);
    std::ofstream(where / "memory.limit_in_bytes") << most;
    std::ofstream(where / "memory.usage_in_bytes") << taken;
    std::ofstream(where / "memory.stat") << "cache 9\ninactive_file 1\ntotal_rss 8\ntotal_inactive_file "
                                         << cached << "\ntotal_active_file 3\n";
  };
  const auto room = [&](const char* own) {
    return device::cgroup_room(root, own, device::CgroupVersion::v1);
  };
  limit(root, "9223372036854771712", "5000", "0");
  EXPECT_EQ(room("/").limiting, 0U) << "that is none";
  // A container sees its own as the root, and is told the path that the host has for it.
  limit(root, "1000", "700", "50");
  EXPECT_EQ(room("/docker/0123").bytes, 353);
  EXPECT_NE(room("/docker/0123").limiting, 0U);
  limit(root / "a", "500", "400", "0");
  EXPECT_EQ(room("/a").bytes, 103);
}

TEST(ProcessMemory, FollowsAnArenaUpAndDown) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "the sanitizer's shadow counts as resident memory, too";
#endif
  constexpr std::int64_t kBytes = 64 << 20;
  constexpr std::int64_t kSlack = 8 << 20;
  const bool resets = reset_peak_memory();
  const ProcessMemory before = read_process_memory();
  {
    const Arena arena({.bytes = kBytes});
    for (std::int64_t i = 0; i < kBytes; i += 4096) arena.base()[i] = std::byte{1};
    const ProcessMemory during = read_process_memory();
    EXPECT_NEAR(static_cast<double>(during.resident_bytes - before.resident_bytes), kBytes, kSlack);
  }
  const ProcessMemory after = read_process_memory();
  EXPECT_LT(after.resident_bytes, before.resident_bytes + kSlack);
  EXPECT_GE(after.peak_resident_bytes, before.resident_bytes + kBytes - kSlack);
  if (!resets || !reset_peak_memory()) GTEST_SKIP() << "this system does not let the peak be reset";
  EXPECT_LT(read_process_memory().peak_resident_bytes, before.resident_bytes + kSlack);
}

TEST(BindThread, KeepsAThreadOnACoreOrSaysWhyNot) {
  std::thread([] {
    EXPECT_THROW(bind_thread({100000}, "x"), UsageError);
    EXPECT_THROW(bind_thread({-1}, "x"), UsageError);
    EXPECT_NO_THROW(bind_thread({}, "a name of more than fifteen characters"));
  }).join();
}

TEST(Stream, RefusesCoresItCannotHave) {
  const auto device = make_cpu_device({});
  EXPECT_THROW(device->make_stream({.name = "lane", .cpus = {1023}}), EnvironmentError);
  EXPECT_THROW(device->make_stream({.name = "lane", .capacity = 0}), UsageError);
  EXPECT_THROW(device->make_stream({.name = "lane", .on_caller = true, .cpus = {0}}), UsageError);
}

}  // namespace
}  // namespace tessera
