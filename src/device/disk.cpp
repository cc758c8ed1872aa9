#include "src/device/disk.h"

#include <fmt/format.h>

#include <algorithm>

#include "src/device/disk_file.h"
#include "src/device/disk_queue.h"
#include "tessera/error.h"
#include "tessera/shape.h"

namespace tessera::device {
namespace {

constexpr int kMostDepth = 4096;
constexpr int kMostThreads = 4;
constexpr std::int64_t kMostBlockBytes = std::int64_t{1} << 30;
constexpr std::int64_t kMostBytes = std::int64_t{1} << 62;

bool aligned(std::int64_t value) { return value % kDiskAlignment == 0; }

void check_options(const DiskOptions& options) {
  if (options.bytes < 1 || options.bytes > kMostBytes)
    throw UsageError(fmt::format("a disk of {} bytes: use 1 to {}", options.bytes, kMostBytes));
  if (options.block_bytes < kDiskAlignment || options.block_bytes > kMostBlockBytes ||
      !aligned(options.block_bytes))
    throw UsageError(fmt::format("a disk with block_bytes {}: use a multiple of {}, up to {}",
                                 options.block_bytes, kDiskAlignment, kMostBlockBytes));
  if (options.depth < 1 || options.depth > kMostDepth)
    throw UsageError(fmt::format("a disk with depth {}: use 1 to {}", options.depth, kMostDepth));
}

std::unique_ptr<DiskQueue> make_queue(const DiskFile& file, const DiskOptions& options) {
  std::string reason = "io_uring is not wanted";
  try {
    if (options.io_uring) return make_uring_queue(file, options.block_bytes, options.depth);
  } catch (const Error& error) {
    reason = error.what();
  }
  return make_thread_queue(file, options.block_bytes, std::min(options.depth, kMostThreads), reason);
}

}  // namespace

Disk::Disk(const DiskOptions& options) {
  check_options(options);
  file_ = std::make_unique<DiskFile>(options.directory, round_up(options.bytes, kDiskAlignment));
  queue_ = make_queue(*file_, options);
}

Disk::~Disk() = default;

void Disk::read(std::int64_t offset, void* to, std::int64_t bytes) {
  check("read", offset, to, bytes);
  queue_->move({.write = false, .offset = offset, .memory = static_cast<std::byte*>(to), .bytes = bytes});
  read_bytes_ += bytes;
}

void Disk::write(std::int64_t offset, const void* from, std::int64_t bytes) {
  check("write", offset, from, bytes);
  auto* memory = static_cast<std::byte*>(const_cast<void*>(from));  // a write only reads it
  queue_->move({.write = true, .offset = offset, .memory = memory, .bytes = bytes});
  written_bytes_ += bytes;
}

void Disk::check(const char* what, std::int64_t offset, const void* memory, std::int64_t bytes) const {
  if (offset < 0 || bytes < 0 || offset > file_->bytes() || bytes > file_->bytes() - offset)
    throw UsageError(fmt::format("{} of {} bytes at offset {}: outside the file's {} bytes", what, bytes,
                                 offset, file_->bytes()));
  if (!aligned(offset) || !aligned(bytes) || !aligned(reinterpret_cast<std::intptr_t>(memory)))
    throw UsageError(fmt::format("{} of {} bytes at offset {} with memory at {}: use multiples of {}", what,
                                 bytes, offset, fmt::ptr(memory), kDiskAlignment));
}

void Disk::register_memory(std::byte* base, std::int64_t bytes) {
  if (bytes < 0) throw UsageError(fmt::format("registering {} bytes of memory: use 0 or more", bytes));
  queue_->register_memory(base, bytes);
}

std::string Disk::description() const {
  const std::string buffers = queue_->buffers();
  return fmt::format("{}, {}{}{}", queue_->description(), file_->description(), buffers.empty() ? "" : ", ",
                     buffers);
}

std::int64_t Disk::bytes() const { return file_->bytes(); }

}  // namespace tessera::device
