// Which of an engine's buffers a checkpoint holds, and which rank stores each.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "tessera/engine.h"

namespace tessera::checkpoint {

struct PersistentBuffer {
  FlatId flat = 0;
  State state = State::parameter;
  Spread spread = {};  // how it lies on the ranks
  std::int64_t bytes = 0;
};

// Of an element of a state, where moments are of this type.
std::int64_t element_bytes(const Flat& flat, State state, DType moment_type);

// Every persistent buffer of this rank, by flat, once: where a parameter is its own master, as that.
std::vector<PersistentBuffer> buffers_of(Engine& engine);

// Takes a buffer's bytes in order.
class BufferWriter {
 public:
  explicit BufferWriter(Engine& engine) : engine_(engine) {}
  void begin(const PersistentBuffer& buffer);
  void append(std::span<const std::byte> bytes);
  // What did not come is zeros.
  void finish();

 private:
  std::int64_t left() const { return buffer_.bytes - written_ - static_cast<std::int64_t>(piece_.size()); }
  void flush();

  Engine& engine_;
  PersistentBuffer buffer_;
  std::span<std::byte> there_;    // where it lies; empty where the host cannot write that
  std::vector<std::byte> piece_;  // that is not written yet
  std::int64_t written_ = 0;      // bytes
};

// The elements of the flat that lie in the buffer on this rank.
ElementRange elements_of(const Engine& engine, const PersistentBuffer& buffer);

// The rank whose file holds the buffer that `rank` holds: the first replica's and, of a whole buffer, the
// first of the shard group; its own where replicas hold slices. Pipeline ranks that share a buffer store it
// each.
int storing_rank(const Mesh& mesh, int rank, const PersistentBuffer& buffer);

}  // namespace tessera::checkpoint
