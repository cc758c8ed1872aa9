#include "src/comm/staged/arenas.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "tessera/error.h"

namespace tessera::comm {

SharedArena SharedArena::of(const Arena& arena) {
  const ArenaFile& file = arena.file();
  const SharedDescriptor shared = SharedDescriptor::of(file.descriptor);
  if (shared.descriptor < 0) return {};
  return {.file = shared, .base_offset = file.base_offset, .bytes = file.bytes};
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
  if (arena.file.descriptor < 0)
    throw EnvironmentError(fmt::format("rank {} has no memory that other processes can map", rank));
  const int file = arena.file.open(O_RDONLY, fmt::format("the arena of rank {}", rank));
  View& view = views_[rank];
  view = view_of(file, static_cast<std::size_t>(arena.bytes));
  const int code = errno;
  close(file);
  if (view.base == nullptr)
    throw EnvironmentError(
        fmt::format("the arena of rank {} cannot be mapped: {}", rank, std::strerror(code)));
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
