#include "src/checkpoint/buffers.h"

#include <array>

#include "tessera/layout.h"

namespace tessera::checkpoint {

std::int64_t element_bytes(const Flat& flat, StateKind state, DType moment_type) {
  if (state == StateKind::parameter) return bytes_of(flat.dtype);
  return bytes_of(state == StateKind::master ? DType::fp32 : moment_type);
}

std::vector<PersistentBuffer> buffers_of(Engine& engine) {
  std::vector<PersistentBuffer> buffers;
  const Layout& layout = engine.layout();
  const Spreads spreads = spreads_of(engine.options().strategy, engine.options().mesh);
  for (FlatId flat = 0; flat < layout.flats().count(); ++flat) {
    for (const StateKind state :
         {StateKind::parameter, StateKind::master, StateKind::moment1, StateKind::moment2}) {
      const std::int64_t bytes = engine.persistent_bytes(flat, state);
      if (bytes == 0) continue;
      buffers.push_back({.flat = flat,
                         .state = state,
                         .spread = state == StateKind::parameter ? spreads.parameters : spreads.states,
                         .bytes = bytes,
                         .cut = layout.flat(flat).over == TensorShare::cut});
    }
  }
  return buffers;
}

void BufferWriter::begin(const PersistentBuffer& buffer) {
  buffer_ = buffer;
  there_ = engine_.persistent(buffer.flat, buffer.state);
  piece_.clear();
  written_ = 0;
}

void BufferWriter::append(std::span<const std::byte> bytes) {
  if (!there_.empty()) {
    std::ranges::copy(bytes, there_.begin() + written_);
    written_ += static_cast<std::int64_t>(bytes.size());
    return;
  }
  constexpr auto kMost = static_cast<std::size_t>(Engine::kPieceBytes);
  while (!bytes.empty()) {  // whole pieces, so that blocks of the disk are not parted
    const auto part = bytes.first(std::min(bytes.size(), kMost - piece_.size()));
    piece_.insert(piece_.end(), part.begin(), part.end());
    bytes = bytes.subspan(part.size());
    if (piece_.size() == kMost) flush();
  }
}

void BufferWriter::flush() {
  engine_.write_persistent(buffer_.flat, buffer_.state, written_, piece_);
  written_ += static_cast<std::int64_t>(piece_.size());
  piece_.clear();
}

void BufferWriter::zero_until(std::int64_t end) {
  constexpr std::int64_t kAtOnce = 4096;
  const std::array<std::byte, kAtOnce> zeros{};
  while (appended() < end)
    append(std::span(zeros).first(static_cast<std::size_t>(std::min(kAtOnce, end - appended()))));
}

void BufferWriter::finish() {
  zero_until(buffer_.bytes);
  if (!piece_.empty()) flush();
}

ElementRange elements_of(const Engine& engine, const PersistentBuffer& buffer) {
  return range_of(engine.layout().flat(buffer.flat), buffer.spread,
                  engine.options().mesh.coordinates(engine.rank()));
}

int storing_rank(const Mesh& mesh, int rank, const PersistentBuffer& buffer) {
  Coordinates place = mesh.coordinates(rank);
  for (const Axis axis : {Axis::shard, Axis::replicate})
    if (!buffer.spread.axes.contains(axis)) place[axis] = 0;
  if (!buffer.cut) place[Axis::tensor] = 0;
  return mesh.rank(place);
}

}  // namespace tessera::checkpoint
