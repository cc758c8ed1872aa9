#include "src/checkpoint/buffers.h"

namespace tessera::checkpoint {

std::vector<PersistentBuffer> buffers_of(Engine& engine) {
  std::vector<PersistentBuffer> buffers;
  const Layout& layout = engine.layout();
  for (FlatId flat = 0; flat < static_cast<FlatId>(layout.flats().size()); ++flat) {
    const std::size_t begin = buffers.size();
    for (const State state : {State::parameter, State::master, State::moment1, State::moment2}) {
      const std::span<std::byte> data = engine.persistent(flat, state);
      bool known = data.empty();
      for (std::size_t i = begin; i < buffers.size(); ++i) known |= buffers[i].data.data() == data.data();
      if (known) continue;
      const std::int64_t element =
          state == State::parameter ? bytes_of(layout.flat(flat).dtype) : bytes_of(DType::fp32);
      const auto numel = static_cast<std::int64_t>(data.size()) / element;
      const Flat& spec = layout.flat(flat);
      buffers.push_back({.flat = flat,
                         .state = state,
                         .whole = numel != spec.shard_numel && numel != spec.slice_numel,
                         .sliced = numel < spec.shard_numel,
                         .data = data});
    }
  }
  return buffers;
}

std::span<std::byte> OnHost::room(const PersistentBuffer& buffer) {
  if (engine_.options().device == DeviceType::cpu) return buffer.data;
  copy_.resize(buffer.data.size());
  return copy_;
}

std::span<const std::byte> OnHost::bring(const PersistentBuffer& buffer) {
  const std::span<std::byte> bytes = room(buffer);
  if (bytes.data() != buffer.data.data())
    engine_.transfer(bytes.data(), buffer.data.data(), static_cast<std::int64_t>(bytes.size()));
  return bytes;
}

int storing_rank(const Mesh& mesh, int rank, const PersistentBuffer& buffer) {
  Coordinates place = mesh.coordinates(rank);
  if (!buffer.sliced) place[static_cast<std::size_t>(Axis::replicate)] = 0;
  if (buffer.whole) place[static_cast<std::size_t>(Axis::shard)] = 0;
  return mesh.rank(place);
}

}  // namespace tessera::checkpoint
