// Which of an engine's buffers a checkpoint holds, and which rank stores each.
#pragma once

#include <span>
#include <vector>

#include "tessera/engine.h"

namespace tessera::checkpoint {

struct PersistentBuffer {
  FlatId flat = 0;
  State state = State::parameter;
  bool whole = false;   // replicated over the shard group, else this rank's shard
  bool sliced = false;  // only this replica's slice of the shard
  std::span<std::byte> data;
};

// Every persistent buffer of this rank, by flat, once: where a parameter is its own master, as that.
std::vector<PersistentBuffer> buffers_of(Engine& engine);

// The rank whose file holds the buffer that `rank` holds: the first replica's and, of a whole buffer, the
// first of the shard group; its own where replicas hold slices. Pipeline ranks that share a buffer store it
// each.
int storing_rank(const Mesh& mesh, int rank, const PersistentBuffer& buffer);

}  // namespace tessera::checkpoint
