// Which of an engine's buffers a checkpoint holds, and which rank stores each.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "tessera/engine.h"

namespace tessera::checkpoint {

struct PersistentBuffer {
  FlatId flat = 0;
  State state = State::parameter;
  bool whole = false;   // replicated over the shard group, else this rank's shard
  bool sliced = false;  // only this replica's slice of the shard
  std::int64_t bytes = 0;
};

// Every persistent buffer of this rank, by flat, once: where a parameter is its own master, as that.
std::vector<PersistentBuffer> buffers_of(Engine& engine);

// A buffer's bytes on the host: where they lie, or a copy of those that lie on a GPU or on the disk.
class OnHost {
 public:
  explicit OnHost(Engine& engine) : engine_(engine) {}
  // As they are now. Valid until the next call.
  std::span<const std::byte> bring(const PersistentBuffer& buffer);
  // Calls fill(bytes on the host), then has them where the buffer lies.
  template <class Fill>
  void send(const PersistentBuffer& buffer, const Fill& fill) {
    const std::span<std::byte> there = engine_.persistent(buffer.flat, buffer.state);
    const std::span<std::byte> bytes = there.empty() ? room(buffer) : there;
    fill(bytes);
    if (there.empty()) engine_.write_persistent(buffer.flat, buffer.state, bytes);
  }

 private:
  std::span<std::byte> room(const PersistentBuffer& buffer);

  Engine& engine_;
  std::vector<std::byte> copy_;
};

// The elements [first, second) of the flat that lie in the buffer on this rank.
std::pair<std::int64_t, std::int64_t> elements_of(const Engine& engine, const PersistentBuffer& buffer);

// The rank whose file holds the buffer that `rank` holds: the first replica's and, of a whole buffer, the
// first of the shard group; its own where replicas hold slices. Pipeline ranks that share a buffer store it
// each.
int storing_rank(const Mesh& mesh, int rank, const PersistentBuffer& buffer);

}  // namespace tessera::checkpoint
