// What tests of the file on disk share: a folder, pages of memory, and the tests' one parameter, the queue.
#pragma once

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include "src/device/disk.h"
#include "tessera/machine.h"

namespace tessera::device {

inline constexpr std::int64_t kPage = kDiskAlignment;
inline constexpr std::int64_t kMiB = 1 << 20;

class Folder {
 public:
  Folder() : path_(testing::TempDir() + "/tessera_disk_XXXXXX") {
    if (mkdtemp(path_.data()) == nullptr) throw std::runtime_error("no folder at " + path_);
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// Pages of memory, filled with what no test writes.
class Memory {
 public:
  explicit Memory(std::int64_t bytes)
      : bytes_(static_cast<std::size_t>(bytes)),
        base_(static_cast<std::byte*>(
            mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0))) {
    poison();
  }
  ~Memory() { munmap(base_, bytes_); }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  void poison() { std::memset(base_, 0xEE, bytes_); }
  std::byte* at(std::int64_t offset) const { return base_ + offset; }

 private:
  std::size_t bytes_;
  std::byte* base_;
};

template <class Failure>
std::string error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Failure& error) {
    return error.what();
  }
  ADD_FAILURE() << "nothing was refused";
  return "";
}

inline void expect_parts(const std::string& text, const std::vector<std::string>& parts) {
  for (const std::string& part : parts)
    EXPECT_NE(text.find(part), std::string::npos) << part << " in: " << text;
}

class DiskTest : public testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    if (GetParam() && !read_uring_machine().unusable.empty()) GTEST_SKIP() << read_uring_machine().unusable;
  }
  DiskOptions options(std::int64_t bytes) const {
    return {.directory = folder_.path(), .bytes = bytes, .io_uring = GetParam()};
  }
  Folder folder_;
};

inline std::string name_of_queue(const testing::TestParamInfo<bool>& queue) {
  return queue.param ? "io_uring" : "threads";
}

}  // namespace tessera::device
