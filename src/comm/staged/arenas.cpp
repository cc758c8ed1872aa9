#include "src/comm/staged/arenas.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "tessera/error.h"

namespace tessera::comm {
namespace {

[[noreturn]] void refuse(const std::string& what, int code) {
  throw EnvironmentError(fmt::format("{}: {}", what, std::strerror(code)));
}

}  // namespace

SharedArena SharedArena::of(const Arena& arena) {
  const ArenaFile& file = arena.file();
  struct stat status {};
  if (file.descriptor < 0 || fstat(file.descriptor, &status) != 0) return {};
  return {.process = static_cast<int>(getpid()),
          .descriptor = file.descriptor,
          .device = status.st_dev,
          .inode = status.st_ino,
          .base_offset = file.base_offset,
          .bytes = file.bytes};
}

MappedArenas::MappedArenas(const Arena& own, int rank, int ranks, const GroupKey& key)
    : own_(own.base()), own_bytes_(own.bytes()), key_(key), views_(ranks) {
  views_[rank].base = own_;
}

MappedArenas::~MappedArenas() {
  for (const View& view : views_)
    if (view.mapping != nullptr) munmap(view.mapping, view.bytes);
}

void MappedArenas::map(int rank, const SharedArena& arena) {
  if (arena.descriptor < 0)
    throw EnvironmentError(fmt::format("rank {} has no memory that other processes can map", rank));
  const std::string path = fmt::format("/proc/{}/fd/{}", arena.process, arena.descriptor);
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) refuse(fmt::format("the arena of rank {} cannot be opened ({})", rank, path), errno);
  struct stat status {};
  const bool same =
      fstat(file, &status) == 0 && status.st_dev == arena.device && status.st_ino == arena.inode;
  View& view = views_[rank];
  if (same) view = view_of(file, static_cast<std::size_t>(arena.bytes));
  const int code = errno;
  close(file);
  if (!same)
    throw EnvironmentError(
        fmt::format("{} is not the arena of rank {}: processes do not see each other", path, rank));
  if (view.base == nullptr) refuse(fmt::format("the arena of rank {} cannot be mapped", rank), code);
  view.base += arena.base_offset;
}

// Where a huge page begins, for the file has them. Without a base where the system refuses.
MappedArenas::View MappedArenas::view_of(int file, std::size_t bytes) {
  constexpr std::size_t kHugePageBytes = std::size_t{2} << 20;
  View view{.bytes = bytes + kHugePageBytes};
  view.mapping = mmap(nullptr, view.bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (view.mapping == MAP_FAILED) return {};
  void* begin = view.mapping;
  std::size_t space = view.bytes;
  std::align(kHugePageBytes, bytes, begin, space);
  if (mmap(begin, bytes, PROT_READ, MAP_SHARED | MAP_FIXED, file, 0) == begin)
    view.base = static_cast<const std::byte*>(begin);
  return view;
}

std::int64_t MappedArenas::offset_of(const void* address) const {
  // As numbers: the address may be of any object.
  const auto offset = reinterpret_cast<std::uintptr_t>(address) - reinterpret_cast<std::uintptr_t>(own_);
  return offset < static_cast<std::uintptr_t>(own_bytes_) ? static_cast<std::int64_t>(offset) : -1;
}

std::shared_ptr<void> RegisteredArenas::add(std::shared_ptr<const MappedArenas> arenas) {
  const MappedArenas* const added = arenas.get();
  const std::lock_guard lock(mutex_);
  registered_.push_back(std::move(arenas));
  return {nullptr, [all = shared_from_this(), added](void*) { all->remove(added); }};
}

void RegisteredArenas::remove(const MappedArenas* arenas) {
  const std::lock_guard lock(mutex_);
  std::erase_if(registered_, [&](const auto& registered) { return registered.get() == arenas; });
}

std::shared_ptr<const MappedArenas> RegisteredArenas::find(const void* address) const {
  const std::lock_guard lock(mutex_);
  for (const auto& arenas : registered_)
    if (arenas->offset_of(address) >= 0) return arenas;
  return nullptr;
}

}  // namespace tessera::comm
