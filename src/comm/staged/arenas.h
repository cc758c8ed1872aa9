// Arenas of the processes of one host, mapped by each other: what a process tells of its own, where it sees
// its peers', and which registered arena an address lies in. Knows nothing of collectives.
#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include "src/comm/staged/descriptor.h"
#include "src/comm/staged/shared.h"
#include "tessera/device.h"
#include "tessera/id_vector.h"

namespace tessera::comm {

// Plain data for the peers of an arena's owner.
struct SharedArena {
  SharedDescriptor file;
  std::int64_t base_offset = 0, bytes = 0;

  static SharedArena of(const Arena& arena);
};

// The arenas that the ranks of a group registered together.
class MappedArenas {
 public:
  // `own` is that of `rank`, one of `ranks` in the world.
  MappedArenas(const Arena& own, int rank, int ranks, const GroupKey& key);
  ~MappedArenas();
  MappedArenas(const MappedArenas&) = delete;
  MappedArenas& operator=(const MappedArenas&) = delete;
  // The arena of a peer, to be read. EnvironmentError, saying what was refused.
  void map(int rank, const SharedArena& arena);

  const GroupKey& key() const { return key_; }
  // From the start of this process's own arena; -1 where the address lies outside.
  std::int64_t offset_of(const void* address) const;
  // Of a rank that registered, this process's included.
  const std::byte* address(int rank, std::int64_t offset) const { return views_[rank].base + offset; }

 private:
  struct View {
    void* mapping = nullptr;
    std::size_t bytes = 0;
    const std::byte* base = nullptr;
  };
  static View view_of(int file, std::size_t bytes);

  const std::byte* const own_;
  const std::int64_t own_bytes_;
  const GroupKey key_;
  IdVector<View> views_;  // by rank of the world; own ones have no mapping, others' may have no base
};

// Where a buffer lies, in a way that peers understand; a default one lies in no registered arena.
struct ArenaPlace {
  GroupKey arenas;
  std::int64_t offset = 0;
};

// All that this process has registered. From any thread.
class RegisteredArenas : public std::enable_shared_from_this<RegisteredArenas> {
 public:
  // Registered until what is returned goes.
  std::shared_ptr<void> add(std::shared_ptr<const MappedArenas> arenas);
  // The arenas that `address` lies in; nullptr if in none. Whoever keeps them keeps peers' memory mapped.
  std::shared_ptr<const MappedArenas> find(const void* address) const;

 private:
  void remove(const MappedArenas* arenas);

  mutable std::mutex mutex_;
  std::vector<std::shared_ptr<const MappedArenas>> registered_;
};

}  // namespace tessera::comm
