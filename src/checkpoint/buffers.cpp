#include "src/checkpoint/buffers.h"

namespace tessera::checkpoint {

std::vector<PersistentBuffer> buffers_of(Engine& engine) {
  std::vector<PersistentBuffer> buffers;
  const Layout& layout = engine.layout();
  for (FlatId flat = 0; flat < static_cast<FlatId>(layout.flats().size()); ++flat) {
    for (const State state : {State::parameter, State::master, State::moment1, State::moment2}) {
      const std::int64_t bytes = engine.persistent_bytes(flat, state);
      if (bytes == 0) continue;
      const std::int64_t element =
          state == State::parameter ? bytes_of(layout.flat(flat).dtype) : bytes_of(DType::fp32);
      const std::int64_t numel = bytes / element;
      const Flat& spec = layout.flat(flat);
      buffers.push_back({.flat = flat,
                         .state = state,
                         .whole = numel != spec.shard_numel && numel != spec.slice_numel,
                         .sliced = numel < spec.shard_numel,
                         .bytes = bytes});
    }
  }
  return buffers;
}

std::span<std::byte> OnHost::room(const PersistentBuffer& buffer) {
  copy_.resize(static_cast<std::size_t>(buffer.bytes));
  return copy_;
}

std::span<const std::byte> OnHost::bring(const PersistentBuffer& buffer) {
  const std::span<std::byte> there = engine_.persistent(buffer.flat, buffer.state);
  if (!there.empty()) return there;
  const std::span<std::byte> bytes = room(buffer);
  engine_.read_persistent(buffer.flat, buffer.state, bytes);
  return bytes;
}

std::pair<std::int64_t, std::int64_t> elements_of(const Engine& engine, const PersistentBuffer& buffer) {
  const Flat& flat = engine.layout().flat(buffer.flat);
  if (buffer.whole) return {0, flat.padded_numel};
  const Mesh& mesh = engine.options().mesh;
  std::int64_t begin = flat.shard_numel * mesh.place(engine.rank(), Axis::shard);
  if (!buffer.sliced) return {begin, begin + flat.shard_numel};
  begin += flat.slice_numel * mesh.place(engine.rank(), Axis::replicate);
  return {begin, begin + flat.slice_numel};
}

int storing_rank(const Mesh& mesh, int rank, const PersistentBuffer& buffer) {
  Coordinates place = mesh.coordinates(rank);
  if (!buffer.sliced) place[static_cast<std::size_t>(Axis::replicate)] = 0;
  if (buffer.whole) place[static_cast<std::size_t>(Axis::shard)] = 0;
  return mesh.rank(place);
}

}  // namespace tessera::checkpoint
