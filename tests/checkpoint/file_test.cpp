// Files are written as they are told to be, whichever way their bytes go.
#include "src/checkpoint/file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <random>

#include "tests/checkpoint/toy_run.h"

namespace tessera::testing {
namespace {

using checkpoint::file_pwrite;
using checkpoint::FileReader;
using checkpoint::FileWriter;
using checkpoint::Pwrite;

// How the system takes writes of whole blocks past its cache; others it takes.
enum class Blocks { all, none, part_of_them, part_of_one, interrupted, fail };
Blocks blocks = Blocks::all;
int block_writes = 0;

ssize_t pwrite_blocks(int file, const void* data, std::size_t bytes, off_t offset) {
  if ((::fcntl(file, F_GETFL) & O_DIRECT) == 0) return ::pwrite(file, data, bytes, offset);
  ++block_writes;
  const auto refused = [](int code) {
    errno = code;
    return ssize_t{-1};
  };
  EXPECT_EQ(bytes % kBlockBytes + static_cast<std::size_t>(offset % kBlockBytes) +
                reinterpret_cast<std::uintptr_t>(data) % kBlockBytes,
            0u);
  switch (blocks) {
    case Blocks::all:
      break;
    case Blocks::none:
      return refused(EINVAL);
    case Blocks::part_of_them:
      return ::pwrite(file, data, std::min<std::size_t>(bytes, 3 * kBlockBytes), offset);
    case Blocks::part_of_one:
      return block_writes < 3 ? ::pwrite(file, data, bytes, offset) : static_cast<ssize_t>(kBlockBytes / 2);
    case Blocks::interrupted:
      if (block_writes % 2 == 1) return refused(EINTR);
      break;
    case Blocks::fail:
      return refused(ENOSPC);
  }
  return ::pwrite(file, data, bytes, offset);
}

class Writing : public ::testing::TestWithParam<Blocks> {
 protected:
  Writing() {
    blocks = GetParam();
    block_writes = 0;
    file_pwrite = &pwrite_blocks;
  }
  ~Writing() override { file_pwrite = ::pwrite; }
};

TEST_P(Writing, AnyOffsetsAndBytes) {
  constexpr std::int64_t kBytes = 20'000'123;
  const TemporaryFolder folder;
  std::mt19937_64 random(7);
  std::vector<std::byte> expected(kBytes);
  {
    FileWriter writer(folder.file("written"), kBytes);
    const auto write = [&](std::int64_t offset, std::int64_t bytes) {
      const std::span<std::byte> part =
          std::span(expected).subspan(static_cast<std::size_t>(offset), static_cast<std::size_t>(bytes));
      std::ranges::generate(part, [&] { return static_cast<std::byte>(random()); });
      writer.write_at(offset, part);
    };
    write(5'000'000, 9'000'001);  // more than goes at once
    write(4'100'000, 900'000);    // up to it
    write(14'000'001, 262'144);   // behind it
    for (const std::int64_t bytes : {0, 1, 4096, 262'143, 262'144 + 4096, 1'000'000})
      write(static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(kBytes - bytes)), bytes);
    write(4096 * 1000, 4096 * 300);
    write(kBytes - 700'000, 700'000);
    write(0, 300);
    writer.finish();
  }
  const FileReader reader(folder.file("written"));
  ASSERT_EQ(reader.bytes(), kBytes);
  std::vector<std::byte> found(kBytes);
  reader.read(0, found);
  EXPECT_TRUE(found == expected);
}

INSTANTIATE_TEST_SUITE_P(Systems, Writing,
                         ::testing::Values(Blocks::all, Blocks::none, Blocks::part_of_them,
                                           Blocks::part_of_one, Blocks::interrupted));

TEST(FullDisk, IsToldWithWhatWasWritten) {
  const TemporaryFolder folder;
  blocks = Blocks::fail;
  file_pwrite = &pwrite_blocks;
  try {
    FileWriter writer(folder.file("written"), 1 << 20);
    const std::vector<std::byte> data((1 << 20) - 10);
    writer.write_at(10, data);
    // A file system without O_DIRECT writes it all.
  } catch (const EnvironmentError& error) {
    expect_mentions(error.what(), {"cannot write", "written", "(4086 of 1048576 bytes written)", "No space"});
  }
  file_pwrite = ::pwrite;
}

}  // namespace
}  // namespace tessera::testing
