// The buffers of an engine that a checkpoint stores, and which rank stores each.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "tessera/engine.h"
#include "tessera/layout.h"

namespace tessera::checkpoint {

struct PersistentBuffer {
  FlatId flat = 0;
  StateKind state = StateKind::parameter;
  Spread spread = {};  // how it is spread over the ranks
  std::int64_t bytes = 0;
  bool cut = false;  // each rank along the tensor axis has other parameters' elements in it
};

// The bytes of one element of a state, with moments of this type.
std::int64_t element_bytes(const Flat& flat, StateKind state, DType moment_type);

// All persistent buffers of this rank, by flat. A parameter that is its own master occurs once, as the
// master.
std::vector<PersistentBuffer> buffers_of(Engine& engine);

// Writes a buffer's bytes, which come in order.
class BufferWriter {
 public:
  explicit BufferWriter(Engine& engine) : engine_(engine) {}
  void begin(const PersistentBuffer& buffer);
  void append(std::span<const std::byte> bytes);
  // Fills the buffer with zeros up to byte `end`.
  void zero_until(std::int64_t end);
  // Fills the rest of the buffer with zeros.
  void finish();

 private:
  std::int64_t appended() const { return written_ + static_cast<std::int64_t>(piece_.size()); }
  void flush();

  Engine& engine_;
  PersistentBuffer buffer_;
  std::span<std::byte> there_;    // the buffer's memory; empty if the host cannot write it directly
  std::vector<std::byte> piece_;  // bytes that are not written yet
  std::int64_t written_ = 0;      // bytes
};

// The elements of the flat that lie in the buffer on this rank.
ElementRange elements_of(const Engine& engine, const PersistentBuffer& buffer);

// The rank whose file stores the buffer that `rank` holds: the rank of the first replica, for a whole buffer
// the first of the shard group, and unless it is cut the first of the tensor group. If replicas hold slices,
// it is of its own replica. Pipeline ranks that share a buffer each store it.
int storing_rank(const Mesh& mesh, int rank, const PersistentBuffer& buffer);

}  // namespace tessera::checkpoint
