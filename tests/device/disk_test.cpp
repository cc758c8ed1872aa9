// The file on disk, by both kinds of queue: contents against a reference in memory, and errors of a call.
#include "src/device/disk.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>
#include <cstring>
#include <random>
#include <vector>

#include "tessera/error.h"
#include "tests/device/disk_fixture.h"

namespace tessera::device {
namespace {

INSTANTIATE_TEST_SUITE_P(Queues, DiskTest, testing::Bool(), name_of_queue);

// Ranges at random, aligned to pages and to nothing else; blocks of any number in flight.
TEST_P(DiskTest, HoldsWhatWasWritten) {
  constexpr std::int64_t kPages = 700, kMost = 300;
  struct Setting {
    std::int64_t block_bytes;
    int depth;
    bool registered;
  };
  std::mt19937 random(7);
  const auto below = [&](std::int64_t end) {
    return static_cast<std::int64_t>(random() % static_cast<unsigned>(end));
  };
  for (const Setting& setting : {Setting{kPage, 1, false},
                                 {kPage, 64, true},
                                 {3 * kPage, 5, true},
                                 {64 * kPage, 3, false},
                                 {kMiB, 16, true},
                                 {kMiB, 1, true}}) {
    SCOPED_TRACE(testing::Message() << setting.block_bytes << " x " << setting.depth);
    DiskOptions with = options(kPages * kPage);
    with.block_bytes = setting.block_bytes;
    with.depth = setting.depth;
    const Memory memory(kMost * kPage);
    Disk disk(with);
    // A half of it: the other, and what lies across, goes unregistered.
    if (setting.registered) disk.register_memory(memory.at(0), kMost / 2 * kPage);
    std::vector<std::byte> expected(kPages * kPage, std::byte{0});  // never written: zeros
    std::int64_t read = 0, written = 0;
    for (int round = 0; round < 60; ++round) {
      const std::int64_t pages = 1 + below(kMost - 1);
      const std::int64_t offset = below(kPages - pages + 1) * kPage, bytes = pages * kPage;
      std::byte* at = memory.at(below(kMost - pages + 1) * kPage);
      if (round % 2 == 0) {
        for (std::int64_t i = 0; i < bytes; i += 8) {
          const std::uint64_t word = (std::uint64_t{random()} << 32) + static_cast<std::uint64_t>(i);
          std::memcpy(at + i, &word, 8);
        }
        disk.write(offset, at, bytes);
        std::memcpy(expected.data() + offset, at, static_cast<std::size_t>(bytes));
        written += bytes;
      } else {
        std::memset(at, 0xEE, static_cast<std::size_t>(bytes));
        disk.read(offset, at, bytes);
        ASSERT_EQ(std::memcmp(at, expected.data() + offset, static_cast<std::size_t>(bytes)), 0) << round;
        read += bytes;
      }
    }
    EXPECT_EQ(disk.read_bytes(), read);
    EXPECT_EQ(disk.written_bytes(), written);
  }
}

// Only the range asked for is touched, in memory and in the file.
TEST_P(DiskTest, TouchesNothingBeside) {
  Memory memory(6 * kPage);
  Disk disk(options(6 * kPage));
  disk.write(0, memory.at(0), 6 * kPage);
  std::memset(memory.at(0), 0x11, 6 * kPage);
  disk.write(2 * kPage, memory.at(2 * kPage), kPage);
  memory.poison();
  std::memset(memory.at(0), 0x22, kPage);
  disk.read(0, memory.at(kPage), 4 * kPage);
  for (const auto& [page, value] :
       {std::pair{0, 0x22}, {1, 0xEE}, {2, 0xEE}, {3, 0x11}, {4, 0xEE}, {5, 0xEE}})
    for (std::int64_t i = 0; i < kPage; ++i) ASSERT_EQ(memory.at(page * kPage)[i], std::byte(value)) << page;
}

TEST_P(DiskTest, RoundsItsBytesUpToAPage) {
  Disk disk(options(2 * kPage + 1));
  EXPECT_EQ(disk.bytes(), 3 * kPage);
  const Memory memory(kPage);
  disk.write(2 * kPage, memory.at(0), kPage);
  disk.write(3 * kPage, memory.at(0), 0);
  EXPECT_EQ(disk.written_bytes(), kPage);
}

TEST_P(DiskTest, RefusesWhatIsNotAlignedOrOutside) {
  Disk disk(options(4 * kPage));
  const Memory memory(8 * kPage);
  const auto refusal = [&](std::int64_t offset, std::int64_t memory_offset, std::int64_t bytes) {
    const std::string read =
        error_of<UsageError>([&] { disk.read(offset, memory.at(memory_offset), bytes); });
    const std::string write =
        error_of<UsageError>([&] { disk.write(offset, memory.at(memory_offset), bytes); });
    EXPECT_EQ(read.substr(4), write.substr(5));
    return read;
  };
  expect_parts(refusal(512, 0, kPage), {"512", "4096 bytes", "multiples of 4096"});
  expect_parts(refusal(0, 0, kPage - 1), {"4095 bytes", "multiples of 4096"});
  expect_parts(refusal(0, 256, kPage), {"multiples of 4096"});
  expect_parts(refusal(kPage, 0, 4 * kPage), {"offset 4096", "16384 bytes"});
  for (const std::int64_t offset : {-kPage, 5 * kPage, INT64_MAX / kPage * kPage}) refusal(offset, 0, kPage);
  for (const std::int64_t bytes : {-kPage, 5 * kPage, INT64_MAX / kPage * kPage}) refusal(0, 0, bytes);
  EXPECT_EQ(disk.read_bytes() + disk.written_bytes(), 0);
}

TEST_P(DiskTest, RefusesOptionsThatMakeNoDisk) {
  const auto refusal = [&](auto member, auto value) {
    DiskOptions with = options(kPage);
    with.*member = value;
    return error_of<UsageError>([&] { const Disk disk(with); });
  };
  expect_parts(refusal(&DiskOptions::bytes, 0), {"0 bytes", "1 to"});
  expect_parts(refusal(&DiskOptions::block_bytes, 1000), {"block_bytes 1000", "multiple of 4096"});
  expect_parts(refusal(&DiskOptions::block_bytes, 0), {"block_bytes 0"});
  expect_parts(refusal(&DiskOptions::block_bytes, std::int64_t{1} << 31), {"block_bytes 2147483648"});
  expect_parts(refusal(&DiskOptions::depth, 0), {"depth 0", "1 to 4096"});
  expect_parts(refusal(&DiskOptions::depth, 5000), {"depth 5000"});
}

// A limit on the length of files cuts a write short in the middle of a block. The rest is asked for, and
// fails at the limit.
TEST_P(DiskTest, GoesOnBehindAShortWriteAndNamesWhereItFails) {
  DiskOptions with = options(8 * kMiB);
  with.depth = 1;  // else blocks behind it fail first
  Disk disk(with);
  const Memory memory(8 * kMiB);
  rlimit old{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &old), 0);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit limit{3 * kMiB + 5 * kPage, old.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
  const std::string error = error_of<EnvironmentError>([&] { disk.write(0, memory.at(0), 8 * kMiB); });
  setrlimit(RLIMIT_FSIZE, &old);
  std::signal(SIGXFSZ, handler);
  expect_parts(error, {"cannot write", folder_.path(), "offset 3166208", "File too large"});
  EXPECT_EQ(disk.written_bytes(), 0);
  std::memset(memory.at(0), 0, 8 * kMiB);
  disk.read(0, memory.at(0), 4 * kMiB);  // it goes on working, and what came before the limit is there
  EXPECT_EQ(*memory.at(3 * kMiB + 5 * kPage - 1), std::byte{0xEE});
  EXPECT_EQ(*memory.at(3 * kMiB + 5 * kPage), std::byte{0});
}

// Many blocks fail at the same time: one error, and nothing of it in the next call.
TEST_P(DiskTest, SurvivesAnError) {
  Disk disk(options(8 * kMiB));
  const Memory memory(4 * kMiB);
  ASSERT_EQ(mprotect(memory.at(kMiB), 2 * kMiB, PROT_NONE), 0);
  expect_parts(error_of<EnvironmentError>([&] { disk.read(0, memory.at(0), 4 * kMiB); }),
               {"cannot read", folder_.path(), "Bad address"});
  ASSERT_EQ(mprotect(memory.at(kMiB), 2 * kMiB, PROT_READ | PROT_WRITE), 0);
  disk.read(0, memory.at(0), 4 * kMiB);
  for (std::int64_t i = 0; i < 4 * kMiB; i += 64) ASSERT_EQ(memory.at(0)[i], std::byte{0}) << i;
}

}  // namespace
}  // namespace tessera::device
