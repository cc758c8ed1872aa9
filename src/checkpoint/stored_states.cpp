#include "src/checkpoint/stored_states.h"

#include <fmt/format.h>

#include <algorithm>

#include "src/checkpoint/buffers.h"
#include "src/checkpoint/folder.h"
#include "src/checkpoint/same_run.h"

namespace tessera::checkpoint {
namespace {

// Null where there is none.
const StoredBuffer* buffer_in(const StoredFile& file, FlatId flat, StateKind state) {
  for (const StoredBuffer& stored : file.header.buffers)
    if (stored.flat == flat && stored.state == state) return &stored;
  return nullptr;
}

}  // namespace

StoredStates::StoredStates(std::filesystem::path folder, const Engine& engine, Takes takes)
    : folder_(std::move(folder)),
      takes_(takes),
      own_layout_(engine.layout()),
      own_tensor_rank_(engine.options().mesh.place(engine.rank(), Axis::tensor)),
      here_(describe(engine)),
      moment_type_(engine.options().optimizer.moment_type) {
  const StoredFile& first = file_of(0);
  layout_.emplace(stored_layout());
  check_layout(first.header, stored_units_, *layout_, first.path.string());
}

// The layout that this engine's units had there, where they may have been cut otherwise.
Layout StoredStates::stored_layout() const {
  IdVector<UnitSpec> units = own_layout_.units();
  try {
    for (UnitId unit = 0; unit < units.count(); ++unit)
      for (std::size_t p = 0; p < units[unit].parameters.size(); ++p) {
        const StoredParameter& stored = stored_units_[unit].parameters[p];
        ParameterSpec& parameter = units[unit].parameters[p];
        parameter.cut = stored.cut;
        parameter.gradient = stored.gradient;
        parameter.trainable = stored.trainable;
        parameter.dtype = parse_dtype(stored.dtype);
      }
    return Layout(std::move(units), mesh().shard, mesh().replicate, mesh().tensor);
  } catch (const UsageError& error) {  // the units alone were taken by an engine
    throw EnvironmentError(fmt::format("checkpoint '{}' is damaged: {}", folder_.string(), error.what()));
  }
}

const StoredFile& StoredStates::file_of(int rank) {
  if (const auto known = files_.find(rank); known != files_.end()) return known->second;
  OpenFile opened(folder_ / file_name(rank));
  const auto check = takes_ == Takes::states ? check_same : check_same_parameters;
  check(opened.header, here_, opened.reader.path().string());
  check_belongs(opened, rank, rank == 0 ? opened.header : header());
  if (rank == 0) stored_units_ = std::move(opened.header.units);
  opened.header.units.clear();  // compared, and many
  return files_.emplace(rank, StoredFile{opened.reader.path(), std::move(opened.header)}).first->second;
}

const StoredFile& StoredStates::first_file(FlatId flat, StateKind state) {
  const int pipeline = here_.mesh.place(here_.rank, Axis::pipeline);  // of a mesh that did not change
  const std::vector<int>& writers = header().ranks;
  for (int i = 0; i < mesh().pipeline; ++i) {
    Coordinates at{};
    at[Axis::pipeline] = (pipeline + i) % mesh().pipeline;
    const int rank = mesh().rank(at);
    if (!writers.empty() && std::ranges::find(writers, rank) == writers.end()) continue;
    const StoredFile& file = file_of(rank);
    if (buffer_in(file, flat, state) != nullptr) return file;
  }
  throw EnvironmentError(fmt::format("checkpoint '{}' has no {} of flat buffer {}, of unit {}",
                                     folder_.string(), name_of(state), flat,
                                     here_.units.at(layout_->flat(flat).unit).name));
}

const StoredStates::State& StoredStates::state_of(FlatId flat, StateKind state) {
  const auto [at, is_new] = states_.try_emplace({flat, state});
  if (!is_new) return at->second;
  const Flat& spec = layout_->flat(flat);
  const StoredFile& first = first_file(flat, state);
  const StoredBuffer& like = *buffer_in(first, flat, state);
  const std::int64_t element = element_bytes(spec, state, moment_type_), numel = like.bytes / element;
  if (like.bytes % element != 0 ||
      (numel != spec.padded_numel && numel != spec.shard_numel && numel != spec.slice_numel))
    throw EnvironmentError(fmt::format("checkpoint file '{}' has {} bytes of the {} of unit {}",
                                       first.path.string(), like.bytes, name_of(state), like.unit));
  const Spread spread = numel == spec.padded_numel ? kWhole : numel == spec.shard_numel ? kShard : kSlice;
  return at->second = {.pipeline = mesh().place(first.header.rank, Axis::pipeline),
                       .spread = spread,
                       .numel = numel,
                       .bytes = like.bytes};
}

const StoredStates::Buffer& StoredStates::buffer_of(FlatId flat, StateKind state, int tensor_rank,
                                                    std::int64_t offset) {
  const State& stored = state_of(flat, state);
  const auto [at, is_new] = buffers_.try_emplace({flat, state, tensor_rank, offset / stored.numel});
  if (!is_new) return at->second;
  Coordinates owner = owner_of(layout_->flat(flat), stored.spread, offset);
  owner[Axis::pipeline] = stored.pipeline;
  owner[Axis::tensor] = tensor_rank;
  const StoredFile& file = file_of(mesh().rank(owner));
  const StoredBuffer* const buffer = buffer_in(file, flat, state);
  if (buffer == nullptr || buffer->bytes != stored.bytes)
    throw EnvironmentError(fmt::format("checkpoint file '{}' has no {} of unit {} of {} bytes",
                                       file.path.string(), name_of(state),
                                       here_.units.at(layout_->flat(flat).unit).name, stored.bytes));
  return at->second = {&file, buffer};
}

// Whether the checkpoint has the same flat: the same elements at the same offsets.
bool StoredStates::has_flat(FlatId flat) const {
  if (flat >= layout_->flats().count() || layout_->flat(flat).parameters != own_layout_.flat(flat).parameters)
    return false;
  return std::ranges::all_of(own_layout_.flat(flat).parameters, [&](ParameterId id) {
    return own_layout_.place(id).offset == layout_->place(id).offset &&
           own_layout_.shares(id) == layout_->shares(id);
  });
}

// Elements [offset, offset + numel) of what a tensor rank stored of a flat, which begin at `at` in this
// rank's.
template <class Add>
void StoredStates::each_of_flat(FlatId flat, StateKind state, int tensor_rank, std::int64_t offset,
                                std::int64_t numel, std::int64_t at, const Add& add) {
  const std::int64_t buffer_numel = state_of(flat, state).numel;
  while (numel > 0) {
    const std::int64_t inside = offset % buffer_numel, part = std::min(numel, buffer_numel - inside);
    const auto& [file, buffer] = buffer_of(flat, state, tensor_rank, offset);
    add({.file = file,
         .buffer = buffer,
         .tensor_rank = tensor_rank,
         .stored = inside,
         .begin = at,
         .numel = part});
    offset += part, at += part, numel -= part;
  }
}

template <class Add>
void StoredStates::each_of_share(ParameterId parameter, StateKind state, std::int64_t begin,
                                 std::int64_t numel, std::int64_t at, const Add& add) {
  const Place& place = layout_->place(parameter);
  constexpr std::int64_t kPartNumel = 1 << 20;  // shares may have a run for each of few elements
  for (std::int64_t done = begin; done < begin + numel; done += kPartNumel)
    for (const ShareRun& run : own_layout_.shares(parameter).of_share(
             own_tensor_rank_, done, std::min(begin + numel, done + kPartNumel)))
      for (const ShareRun& stored :
           layout_->shares(parameter).of_parameter(run.global, run.global + run.numel))
        each_of_flat(place.flat, state, stored.tensor_rank, place.offset + stored.local, stored.numel,
                     at + (run.local - begin) + (stored.global - run.global), add);
}

void StoredStates::each(FlatId flat, StateKind state, std::int64_t begin, std::int64_t end,
                        const std::function<void(const StoredRun& run)>& visit) {
  if (has_flat(flat)) {
    const bool cut = own_layout_.flat(flat).over == TensorShare::cut;
    const std::int64_t numel = std::min(end, layout_->flat(flat).padded_numel) - begin;
    return each_of_flat(flat, state, cut ? own_tensor_rank_ : 0, begin, numel, begin, visit);
  }
  StoredRun pending;  // runs of few elements are often neighbours
  const auto add = [&](const StoredRun& run) {
    if (run.buffer == pending.buffer && run.stored == pending.stored + pending.numel &&
        run.begin == pending.begin + pending.numel) {
      pending.numel += run.numel;
      return;
    }
    if (pending.numel > 0) visit(pending);
    pending = run;
  };
  for (const Piece& piece : own_layout_.pieces(flat, begin, end))
    each_of_share(piece.parameter, state, piece.begin, piece.numel, piece.offset, add);
  if (pending.numel > 0) visit(pending);
}

StateKind StoredStates::state_of_parameter(ParameterId parameter) const {
  const Flat& flat = layout_->flat(layout_->place(parameter).flat);
  return flat.trainable && flat.dtype != DType::fp32 ? StateKind::master : StateKind::parameter;
}

DType StoredStates::type_of_parameter(ParameterId parameter) const {
  return state_of_parameter(parameter) == StateKind::master
             ? DType::fp32
             : layout_->flat(layout_->place(parameter).flat).dtype;
}

void StoredStates::each_of_parameter(ParameterId parameter, std::int64_t begin, std::int64_t numel,
                                     const std::function<void(const StoredRun& run)>& visit) {
  const Place& place = layout_->place(parameter);
  for (const ShareRun& stored : layout_->shares(parameter).of_parameter(begin, begin + numel))
    each_of_flat(place.flat, state_of_parameter(parameter), stored.tensor_rank, place.offset + stored.local,
                 stored.numel, stored.global - begin, visit);
}

// Ranks may see different folders, or the newest checkpoint at different times.
void check_same_checkpoint(Communicator& world, const std::filesystem::path& path, const Header& header) {
  struct Opened {
    std::uint64_t checksum;
    std::int64_t step;
    std::int64_t rank;
  };
  const Opened own{header.checksum, header.state.step, world.global_rank()};
  IdVector<Opened> all(world.world());
  world.all_gather(&own, all.data(), sizeof own, {"checkpoint", "comparing what was opened"});
  for (const Opened& opened : all)
    if (opened.checksum != all[0].checksum)
      throw EnvironmentError(fmt::format(
          "checkpoint '{}': rank {} finds step {} ({:016x}) there, rank {} step {} ({:016x}); all "
          "ranks must see the same folder",
          path.string(), opened.rank, opened.step, opened.checksum, all[0].rank, all[0].step,
          all[0].checksum));
}

}  // namespace tessera::checkpoint
