#include "src/checkpoint/stored_states.h"

#include <fmt/format.h>

#include <algorithm>

#include "src/checkpoint/buffers.h"
#include "src/checkpoint/folder.h"
#include "src/checkpoint/same_run.h"

namespace tessera::checkpoint {
namespace {

int rank_at(const Mesh& mesh, int pipeline, int replica, int shard) {
  Coordinates at{};
  at[Axis::pipeline] = pipeline;
  at[Axis::replicate] = replica;
  at[Axis::shard] = shard;
  return mesh.rank(at);
}

// Null where there is none.
const StoredBuffer* buffer_in(const StoredFile& file, FlatId flat, StateKind state) {
  for (const StoredBuffer& stored : file.header.buffers)
    if (stored.flat == flat && stored.state == state) return &stored;
  return nullptr;
}

}  // namespace

StoredStates::StoredStates(std::filesystem::path folder, const Engine& engine)
    : folder_(std::move(folder)),
      here_(describe(engine)),
      moment_type_(engine.options().optimizer.moment_type) {
  const StoredFile& first = file_of(0);
  layout_.emplace(engine.layout().units(), mesh().shard, mesh().replicate);
  check_layout(first.header, here_.units, *layout_, first.path.string());
}

const StoredFile& StoredStates::file_of(int rank) {
  if (const auto known = files_.find(rank); known != files_.end()) return known->second;
  OpenFile opened(folder_ / file_name(rank));
  check_same(opened.header, here_, opened.reader.path().string());
  check_belongs(opened, rank, rank == 0 ? opened.header : header());
  opened.header.units.clear();  // compared, and many
  return files_.emplace(rank, StoredFile{opened.reader.path(), std::move(opened.header)}).first->second;
}

const StoredFile& StoredStates::first_file(FlatId flat, StateKind state) {
  const int pipeline = here_.mesh.place(here_.rank, Axis::pipeline);  // of a mesh that did not change
  const std::vector<int>& writers = header().ranks;
  for (int i = 0; i < mesh().pipeline; ++i) {
    const int rank = rank_at(mesh(), (pipeline + i) % mesh().pipeline, 0, 0);
    if (!writers.empty() && std::ranges::find(writers, rank) == writers.end()) continue;
    const StoredFile& file = file_of(rank);
    if (buffer_in(file, flat, state) != nullptr) return file;
  }
  throw EnvironmentError(fmt::format("checkpoint '{}' has no {} of flat buffer {}, of unit {}",
                                     folder_.string(), name_of(state), flat,
                                     here_.units.at(layout_->flat(flat).unit).name));
}

std::vector<StoredPiece> StoredStates::find(FlatId flat, StateKind state, std::int64_t begin,
                                            std::int64_t end) {
  const Flat& spec = layout_->flat(flat);
  end = std::min(end, spec.padded_numel);
  std::vector<StoredPiece> pieces;
  if (begin >= end) return pieces;
  const StoredFile& first = first_file(flat, state);
  const StoredBuffer& like = *buffer_in(first, flat, state);
  const std::int64_t element = element_bytes(spec, state, moment_type_), numel = like.bytes / element;
  if (like.bytes % element != 0 ||
      (numel != spec.padded_numel && numel != spec.shard_numel && numel != spec.slice_numel))
    throw EnvironmentError(fmt::format("checkpoint file '{}' has {} bytes of the {} of unit {}",
                                       first.path.string(), like.bytes, name_of(state), like.unit));
  const Spread spread = numel == spec.padded_numel ? kWhole : numel == spec.shard_numel ? kShard : kSlice;
  const int pipeline = mesh().place(first.header.rank, Axis::pipeline);
  for (std::int64_t at = begin / numel * numel; at < end; at += numel) {
    const Coordinates owner = owner_of(spec, spread, at);
    const StoredFile& file = file_of(rank_at(mesh(), pipeline, owner[Axis::replicate], owner[Axis::shard]));
    const StoredBuffer* const buffer = buffer_in(file, flat, state);
    if (buffer == nullptr || buffer->bytes != like.bytes)
      throw EnvironmentError(fmt::format("checkpoint file '{}' has no {} of unit {} of {} bytes",
                                         file.path.string(), name_of(state), like.unit, like.bytes));
    pieces.push_back({.file = &file, .buffer = buffer, .begin = at, .end = at + numel});
  }
  return pieces;
}

}  // namespace tessera::checkpoint
