#include <fcntl.h>
#include <fmt/format.h>
#include <sanitizer/asan_interface.h>  // its macros do nothing without AddressSanitizer
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "src/device/size_text.h"
#include "tessera/device.h"
#include "tessera/error.h"
#include "tessera/machine.h"
#include "tessera/shape.h"

namespace tessera {
namespace {

constexpr std::int64_t kHugePageBytes = std::int64_t{2} << 20;
constexpr std::int64_t kPageBytes = 4096;
constexpr int kCollapse = 25;  // MADV_COLLAPSE, since Linux 6.1
constexpr std::int64_t kMostBytes = std::int64_t{1} << 56;

[[noreturn]] void throw_refused(std::int64_t bytes, int code) {
  throw EnvironmentError(fmt::format("cannot take an arena of {} bytes ({}): {}; {} are available", bytes,
                                     device::size_text(bytes), std::strerror(code),
                                     device::size_text(read_machine().available_bytes)));
}

void unmap(std::uintptr_t begin, std::uintptr_t end) {
  if (begin < end) munmap(reinterpret_cast<void*>(begin), end - begin);
}

// Null where the system refuses; errno says why.
std::byte* map(std::int64_t bytes, int protection) {
  void* const at =
      mmap(nullptr, static_cast<std::size_t>(bytes), protection, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  return at == MAP_FAILED ? nullptr : static_cast<std::byte*>(at);
}

}  // namespace

Arena::Arena(const ArenaOptions& options) : bytes_(options.bytes), fill_poisoned_(options.fill_poisoned) {
  if (options.bytes < 0) throw UsageError(fmt::format("an arena of {} bytes: use 0 or more", options.bytes));
  if (options.stagger_bytes < 0 || options.stagger_bytes % 256 != 0)
    throw UsageError(
        fmt::format("an arena with stagger_bytes {}: use a multiple of 256", options.stagger_bytes));
  if (options.address_space_before < 0)
    throw UsageError(
        fmt::format("an arena with address_space_before {}: use 0 or more", options.address_space_before));
  if (options.bytes == 0) return;

  // One huge page more than needed, so that a boundary lies inside; what is outside is given back.
  const std::int64_t needed = options.bytes + options.stagger_bytes + kHugePageBytes;
  const std::int64_t before = round_up(options.address_space_before, kPageBytes);
  std::byte* mapping = nullptr;
  errno = ENOMEM;
  if (before > 0 && before < kMostBytes && options.bytes < kMostBytes) {
    mapping = map(before + needed, PROT_NONE);  // one mapping, so that an address in it is one for all of it
    if (mapping != nullptr) address_space_before_ = options.address_space_before;
  }
  if (mapping == nullptr && options.bytes < kMostBytes) mapping = map(needed, PROT_READ | PROT_WRITE);
  if (mapping == nullptr) throw_refused(options.bytes, errno);
  reserved_bytes_ = address_space_before_ > 0 ? static_cast<std::size_t>(before) : 0;

  const auto begin = reinterpret_cast<std::uintptr_t>(mapping);
  const std::uintptr_t boundary = round_up(begin + reserved_bytes_, kHugePageBytes);
  const std::uintptr_t base = boundary + static_cast<std::uintptr_t>(options.stagger_bytes);
  const std::uintptr_t first = base / kPageBytes * kPageBytes;
  const std::uintptr_t last = round_up(base + static_cast<std::uintptr_t>(options.bytes), kPageBytes);
  unmap(begin, first - reserved_bytes_);
  unmap(last, begin + reserved_bytes_ + round_up(static_cast<std::uintptr_t>(needed), kPageBytes));
  base_ = reinterpret_cast<std::byte*>(base);
  mapping_ = reinterpret_cast<void*>(first);
  mapping_bytes_ = last - first;
  if (reserved_bytes_ > 0) open_behind_reserved();
  if (options.shared) share(static_cast<std::int64_t>(first - boundary));
  if (options.huge_pages) madvise(mapping_, mapping_bytes_, MADV_HUGEPAGE);  // a refusal costs speed only
  if (file_.descriptor >= 0) take_all(options.huge_pages);
}

Arena::Arena(std::unique_ptr<ArenaMemory> memory, std::int64_t bytes, bool fill_poisoned)
    : base_(memory->base()), bytes_(bytes), memory_(std::move(memory)), fill_poisoned_(fill_poisoned) {}

// All of the mapping is still without access.
void Arena::open_behind_reserved() {
  if (mprotect(mapping_, mapping_bytes_, PROT_READ | PROT_WRITE) != 0) refuse(errno);
  // What cannot be read is in no core dump anyway; this also holds where a debugger opens it.
  madvise(static_cast<std::byte*>(mapping_) - reserved_bytes_, reserved_bytes_, MADV_DONTDUMP);
}

// Puts a file without a name, whose byte 0 is at the boundary of a huge page, in the place of the private
// pages. Where the system has no such files they stay.
void Arena::share(std::int64_t offset) {
  const int file = memfd_create("tessera", MFD_CLOEXEC);
  if (file < 0) return;
  file_ = {.descriptor = file,
           .base_offset = offset + (base_ - static_cast<std::byte*>(mapping_)),
           .bytes = offset + static_cast<std::int64_t>(mapping_bytes_)};
  if (ftruncate(file, file_.bytes) != 0 || mmap(mapping_, mapping_bytes_, PROT_READ | PROT_WRITE,
                                                MAP_SHARED | MAP_FIXED, file, offset) == MAP_FAILED)
    refuse(errno);
}

// Now, for later a write where memory has run out would end the process.
void Arena::take_all(bool huge_pages) {
  // By default Linux gives shared memory small pages, but makes a huge one of those that are there when
  // asked.
  if (huge_pages) {
    for (std::size_t offset = 0; offset < mapping_bytes_; offset += kHugePageBytes)
      static_cast<std::byte*>(mapping_)[offset] = std::byte{0};
    madvise(mapping_, mapping_bytes_, kCollapse);
  }
  if (madvise(mapping_, mapping_bytes_, MADV_POPULATE_WRITE) == 0) return;
  const auto bytes = static_cast<off_t>(mapping_bytes_);
  if (errno == EINVAL && fallocate(file_.descriptor, 0, file_.bytes - bytes, bytes) == 0)
    return;  // before Linux 5.14
  refuse(errno);
}

void Arena::refuse(int code) {
  give_back();
  throw_refused(bytes_, code);
}

Arena::~Arena() { give_back(); }

Arena::Arena(Arena&& other) noexcept { *this = std::move(other); }

Arena& Arena::operator=(Arena&& other) noexcept {
  if (this == &other) return *this;
  give_back();
  base_ = std::exchange(other.base_, nullptr);
  bytes_ = std::exchange(other.bytes_, 0);
  mapping_ = std::exchange(other.mapping_, nullptr);
  mapping_bytes_ = std::exchange(other.mapping_bytes_, 0);
  address_space_before_ = std::exchange(other.address_space_before_, 0);
  reserved_bytes_ = std::exchange(other.reserved_bytes_, 0);
  memory_ = std::move(other.memory_);
  fill_poisoned_ = other.fill_poisoned_;
  file_ = std::exchange(other.file_, {});
  users_ = std::exchange(other.users_, {});
  return *this;
}

void Arena::give_back() noexcept {
  users_.clear();
  memory_.reset();
  if (file_.descriptor >= 0) close(file_.descriptor);
  file_ = {};
  if (mapping_ == nullptr) return;
  ASAN_UNPOISON_MEMORY_REGION(base_, bytes_);  // the addresses may be mapped again by others
  munmap(static_cast<std::byte*>(mapping_) - reserved_bytes_, reserved_bytes_ + mapping_bytes_);
  mapping_ = nullptr;
  reserved_bytes_ = 0;
  address_space_before_ = 0;
}

void Arena::check(const char* what, std::int64_t offset, std::int64_t bytes) const {
  if (offset >= 0 && bytes >= 0 && offset <= bytes_ && bytes <= bytes_ - offset) return;
  throw UsageError(
      fmt::format("{} of {} bytes at offset {}: outside the arena's {} bytes", what, bytes, offset, bytes_));
}

void Arena::attach(std::shared_ptr<void> user) { users_.push_back(std::move(user)); }

void Arena::poison(std::int64_t offset, std::int64_t bytes) {
  check("poison", offset, bytes);
  if (memory_ != nullptr) {
    if (fill_poisoned_ && bytes > 0) memory_->fill(offset, bytes, 0xFF);
    return;
  }
  if (fill_poisoned_ && bytes > 0) {
    ASAN_UNPOISON_MEMORY_REGION(base_ + offset, bytes);  // it may be poisoned already
    std::memset(base_ + offset, 0xFF, static_cast<std::size_t>(bytes));
  }
  ASAN_POISON_MEMORY_REGION(base_ + offset, bytes);
}

void Arena::unpoison(std::int64_t offset, std::int64_t bytes) {
  check("unpoison", offset, bytes);
  if (memory_ != nullptr) return;
  ASAN_UNPOISON_MEMORY_REGION(base_ + offset, bytes);
}

}  // namespace tessera
