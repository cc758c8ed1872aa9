// The file on disk and the system: the space it takes, what is left behind, and what may be refused. A call
// is refused by a seccomp filter of one thread.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/capability.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <thread>
#include <utility>

#include "src/device/disk.h"
#include "src/device/disk_file.h"
#include "tessera/error.h"
#include "tessera/machine.h"
#include "tests/device/disk_fixture.h"
#include "tests/device/refuse_call.h"

namespace tessera::device {
namespace {

namespace fs = std::filesystem;

class DiskSystem : public DiskTest {};
INSTANTIATE_TEST_SUITE_P(Queues, DiskSystem, testing::Bool(), name_of_queue);

std::int64_t free_bytes(const std::string& path) {
  struct statvfs space {};
  EXPECT_EQ(statvfs(path.c_str(), &space), 0);
  return static_cast<std::int64_t>(space.f_bavail * space.f_frsize);
}

TEST_P(DiskSystem, NamesADirectoryThatCannotBeUsed) {
  const auto refusal = [&](const std::string& directory) {
    DiskOptions with = options(kPage);
    with.directory = directory;
    return error_of<EnvironmentError>([&] { const Disk disk(with); });
  };
  expect_parts(refusal(folder_.path() + "/absent"),
               {folder_.path() + "/absent'", "No such file or directory"});
  expect_parts(refusal("/dev/null"), {"'/dev/null'", "Not a directory"});
  expect_parts(refusal(""), {"''"});
  ASSERT_EQ(chmod(folder_.path().c_str(), 0555), 0);
  std::thread([&] {
    syscall(SYS_setfsuid, 65534);  // of this thread alone; root may write anywhere
    expect_parts(refusal(folder_.path()), {folder_.path(), "Permission denied"});
  }).join();
}

TEST_P(DiskSystem, SaysWhatIsMissingOnAFullDisk) {
  const std::int64_t free = free_bytes(folder_.path()),
                     wanted = free / kPage * kPage + (std::int64_t{1} << 40);
  const std::string error = error_of<EnvironmentError>([&] { const Disk disk(options(wanted)); });
  expect_parts(error, {folder_.path(), std::to_string(wanted), "are free", "are missing", "(1024."});
  EXPECT_GT(free_bytes(folder_.path()), free / 2) << "it took space first";
}

TEST_P(DiskSystem, TakesItsSpaceWhenMade) {
  constexpr std::int64_t kBytes = 512 * kMiB;
  std::int64_t before = free_bytes(folder_.path()), during = 0;
  {
    const Disk disk(options(kBytes));
    during = free_bytes(folder_.path());
    EXPECT_TRUE(fs::is_empty(folder_.path()));
  }
  EXPECT_LT(during, before - kBytes / 2) << "others write to this disk, so half of it";
  EXPECT_GT(free_bytes(folder_.path()), during + kBytes / 2);
}

TEST_P(DiskSystem, LeavesNothingWhenKilled) {
  constexpr std::int64_t kBytes = 512 * kMiB;
  int ready[2] = {};
  ASSERT_EQ(pipe(ready), 0);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    Disk disk(options(kBytes));
    const Memory memory(8 * kMiB);
    for (std::int64_t round = 0;; ++round) {
      disk.write(round % 64 * 8 * kMiB, memory.at(0), 8 * kMiB);
      if (round == 2 && write(ready[1], "x", 1) != 1) _exit(1);
    }
  }
  close(ready[1]);
  char byte = 0;
  EXPECT_EQ(::read(ready[0], &byte, 1), 1) << "the child ended by itself";
  close(ready[0]);
  const std::int64_t during = free_bytes(folder_.path());
  ASSERT_EQ(kill(child, SIGKILL), 0);
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
  EXPECT_TRUE(fs::is_empty(folder_.path()));
  // The kernel ends a ring behind the process.
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (free_bytes(folder_.path()) <= during + kBytes / 2 && std::chrono::steady_clock::now() < deadline)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  EXPECT_GT(free_bytes(folder_.path()), during + kBytes / 2);
}

// What the system may lack, each refused in turn: contents stay right, and the description says it.
TEST_P(DiskSystem, DoesWithoutWhatTheSystemLacks) {
  const auto description_without = [&](const Refusal& refusal) {
    std::string description;
    std::thread([&] {
      refuse_call(refusal);
      Disk disk(options(3 * kMiB));
      const Memory out(3 * kMiB), in(3 * kMiB);
      std::memset(out.at(0), 0x5A, 3 * kMiB);
      disk.register_memory(in.at(0), 3 * kMiB);
      disk.write(0, out.at(0), 2 * kMiB);
      disk.read(0, in.at(0), 3 * kMiB);
      EXPECT_EQ(std::memcmp(in.at(0), out.at(0), 2 * kMiB), 0);
      EXPECT_EQ(*in.at(2 * kMiB), std::byte{0});
      description = disk.description();
    }).join();
    EXPECT_TRUE(fs::is_empty(folder_.path()));
    return description;
  };
  const std::string queue =
      GetParam() ? "io_uring, " : "4 threads of pread and pwrite (io_uring is not wanted), ";
  const std::string nothing = description_without({});
  EXPECT_EQ(nothing.substr(0, queue.size()), queue);
  EXPECT_EQ(nothing.find("registered") != std::string::npos, GetParam()) << nothing;
  // Refused for good, to see that the filter finds the call.
  std::thread([&] {
    refuse_call({.call = SYS_openat, .argument = 2, .bits = O_TMPFILE, .error = EACCES});
    expect_parts(error_of<EnvironmentError>([&] { const Disk disk(options(kPage)); }), {"Permission denied"});
  }).join();
  EXPECT_EQ(description_without({.call = SYS_openat, .argument = 2, .bits = O_TMPFILE, .error = EOPNOTSUPP}),
            nothing);
  EXPECT_EQ(description_without({.call = SYS_fcntl, .argument = 2, .bits = O_DIRECT, .error = EINVAL})
                .substr(0, queue.size() + 45),
            queue + "buffered (O_DIRECT refused: Invalid argument)");
  expect_parts(description_without({.call = SYS_fallocate, .error = EOPNOTSUPP}),
               {queue, "space not reserved (fallocate: Operation not supported)"});
  if (!GetParam()) return;
  for (const auto& [code, text] :
       {std::pair{EPERM, "Operation not permitted"}, {ENOSYS, "Function not implemented"}})
    expect_parts(description_without({.call = SYS_io_uring_setup, .error = code}),
                 {"4 threads of pread and pwrite (io_uring refused: " + std::string(text) + "), "});
  expect_parts(description_without({.call = SYS_io_uring_register, .error = EPERM}),
               {"4 threads", "Linux has since 5.6"});
}

// A system may move less than is asked for, and tell why only when it is asked for the rest.
TEST(DiskRequests, AreRepeatedForWhatWasNotMoved) {
  const Folder folder;
  const DiskFile file(folder.path(), 4 * kPage);
  const Memory memory(4 * kPage);
  const Transfer all{.write = true, .offset = 0, .memory = memory.at(0), .bytes = 4 * kPage};
  Transfer rest = all;
  file.advance(rest, kPage + 100);
  EXPECT_EQ(std::pair(rest.offset, rest.bytes), std::pair(kPage, 3 * kPage));
  EXPECT_EQ(rest.memory, memory.at(kPage));
  for (int request = 0; request < 20; ++request) {
    file.advance(rest, 1 + request * 200);
    EXPECT_EQ(std::pair(rest.offset, rest.bytes), std::pair(kPage, 3 * kPage)) << request;
  }
  expect_parts(error_of<EnvironmentError>([&] { file.advance(rest, -ENOSPC); }),
               {"cannot write 12288 bytes at offset 4096 of the file in directory '" + folder.path(),
                "No space left on device"});
  file.advance(rest, 3 * kPage);
  EXPECT_EQ(rest.bytes, 0);
  rest = all;
  expect_parts(error_of<EnvironmentError>([&] { file.advance(rest, 0); }), {"': 0 were moved"});
  expect_parts(error_of<EnvironmentError>([&] {
                 for (int request = 0; request < 1000; ++request) file.advance(rest, 7);
               }),
               {"': 7 were moved, and no more in 64 requests"});
}

TEST(DiskWithout, GoesOnUnregisteredBeyondTheLimitOfLockedMemory) {
  if (!read_uring_machine().unusable.empty()) GTEST_SKIP() << read_uring_machine().unusable;
  rlimit old{};
  ASSERT_EQ(getrlimit(RLIMIT_MEMLOCK, &old), 0);
  const rlimit limit{64 << 10, old.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_MEMLOCK, &limit), 0);
  std::thread([] {
    // Nothing is limited for who has this capability; it is a thread's own.
    __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
    __user_cap_data_struct none[2] = {};
    ASSERT_EQ(syscall(SYS_capset, &header, none), 0);
    const Folder folder;
    Disk disk({.directory = folder.path(), .bytes = 8 * kMiB});
    const Memory memory(8 * kMiB);
    disk.register_memory(memory.at(0), 8 * kMiB);
    expect_parts(disk.description(),
                 {"io_uring", "buffers not registered (Cannot allocate memory; 65536 bytes may be locked)"});
    disk.read(0, memory.at(0), 8 * kMiB);
    EXPECT_EQ(*memory.at(8 * kMiB - 1), std::byte{0});
    disk.register_memory(memory.at(0), 8 * kPage);
    expect_parts(disk.description(), {"registered buffers"});
    disk.register_memory(nullptr, 0);
    EXPECT_EQ(disk.description().find("registered"), std::string::npos) << disk.description();
  }).join();
  setrlimit(RLIMIT_MEMLOCK, &old);
}

TEST(DiskWithout, SaysWhichBuildHasNoLiburing) {
  const UringMachine machine = read_uring_machine();
  if (machine.built) GTEST_SKIP() << "this one has it";
  const Folder folder;
  const Disk disk({.directory = folder.path(), .bytes = kPage});
  expect_parts(machine.unusable, {"TESSERA_WITH_LIBURING"});
  expect_parts(disk.description(), {"4 threads", machine.unusable});
}

}  // namespace
}  // namespace tessera::device
