// Parameters and optimizer state by global coordinates, between steps.
#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <tuple>

#include "kernels/casts.h"
#include "src/engine/engine_impl.h"

namespace tessera {
namespace {

constexpr std::int64_t kChunkNumel = 1 << 20;  // at once, on its way to or from a buffer

std::string_view name_of(State state) {
  constexpr std::string_view kNames[] = {"master", "parameter", "moment1", "moment2"};
  const auto index = static_cast<std::size_t>(state);
  return index < std::size(kNames) ? kNames[index] : "such state";
}

}  // namespace

BufferId Engine::Impl::buffer_of(FlatId flat, State state) const {
  const FlatBuffers& buffers = programs[0].flat_buffers[static_cast<std::size_t>(flat)];
  switch (state) {
    case State::parameter:
      return buffers.parameter;
    case State::master:
      return layout.flat(flat).trainable ? buffers.master : -1;
    case State::moment1:
      return buffers.moments[0];
    case State::moment2:
      return buffers.moments[1];
  }
  return -1;
}

BufferId Engine::Impl::own_buffer(FlatId flat, State state) const {
  const BufferId buffer = buffer_of(flat, state);
  return state == State::master && buffer == buffer_of(flat, State::parameter) ? -1 : buffer;
}

std::int64_t Engine::Impl::element_bytes(FlatId flat, State state) const {
  return state == State::parameter ? bytes_of(layout.flat(flat).dtype) : 4;
}

bool Engine::Impl::exists(FlatId flat, State state) const {
  if (state == State::parameter) return true;
  if (!layout.flat(flat).trainable) return false;
  return state == State::master ||
         static_cast<int>(state) - static_cast<int>(State::moment1) < options.optimizer.moments();
}

std::int64_t Engine::Impl::held_numel(FlatId flat, State state) const {
  const Flat& spec = layout.flat(flat);
  const Placements& placements = programs[0].placements;
  // An fp32 parameter is its own master.
  const bool as_parameter =
      state == State::parameter || (state == State::master && spec.dtype == DType::fp32);
  if (as_parameter ? programs[0].parameters_over_replicas : programs[0].state_over_replicas)
    return spec.slice_numel;
  const Placement placement = as_parameter ? placements.parameters : placements.optimizer_state;
  return placement == Placement::sharded ? spec.shard_numel : spec.padded_numel;
}

int Engine::Impl::owner(FlatId flat, State state, std::int64_t offset) const {
  const Flat& spec = layout.flat(flat);
  const std::int64_t numel = held_numel(flat, state);
  Coordinates at{};
  at[static_cast<std::size_t>(Axis::pipeline)] = partition.rank_of(spec.unit);
  if (numel < spec.padded_numel)
    at[static_cast<std::size_t>(Axis::shard)] = static_cast<int>(offset / spec.shard_numel);
  if (numel < spec.shard_numel)
    at[static_cast<std::size_t>(Axis::replicate)] =
        static_cast<int>(offset % spec.shard_numel / spec.slice_numel);
  return options.mesh.rank(at);
}

std::pair<std::int64_t, std::int64_t> Engine::Impl::held(FlatId flat, State state) const {
  const Flat& spec = layout.flat(flat);
  const std::int64_t numel = held_numel(flat, state);
  std::int64_t begin = 0;
  if (numel < spec.padded_numel)
    begin += spec.shard_numel * coordinates[static_cast<std::size_t>(Axis::shard)];
  if (numel < spec.shard_numel)
    begin += spec.slice_numel * coordinates[static_cast<std::size_t>(Axis::replicate)];
  return {begin, begin + numel};
}

void Engine::Impl::check_between_steps(const char* call) const {
  if (running()) throw UsageError(fmt::format("{}: a step is running; call it between steps", call));
}

void Engine::Impl::check_finished(const char* call) const {
  check_between_steps(call);
  if (executor->carried_from() >= 0)
    throw UsageError(fmt::format(
        "{}: the last step left its updates to the next (strategy.update); call finish_updates() on every "
        "rank first",
        call));
}

// Keeps what of [offset, offset + values) of the flat lies in this rank's buffer.
void Engine::Impl::store(FlatId flat, State state, std::int64_t offset, std::span<const float> values) {
  const BufferId buffer = buffer_of(flat, state);
  if (buffer < 0) return;
  const std::int64_t element = element_bytes(flat, state);
  const auto [first, last] = held(flat, state);
  const std::int64_t begin = std::max(offset, first);
  const std::int64_t end = std::min(offset + static_cast<std::int64_t>(values.size()), last);
  if (begin >= end) return;
  const DType type = state == State::parameter ? layout.flat(flat).dtype : DType::fp32;
  for (std::int64_t done = begin; done < end; done += kChunkNumel) {
    const std::int64_t numel = std::min(kChunkNumel, end - done);
    staging.resize(static_cast<std::size_t>(numel * element));
    kernels::cast({}, numel, DType::fp32, values.data() + (done - offset), type, staging.data());
    executor->write_persistent(buffer, (done - first) * element, staging);
  }
}

void Engine::Impl::load(FlatId flat, State state, std::int64_t offset, std::span<float> values) {
  const BufferId buffer = buffer_of(flat, state);
  const std::int64_t element = element_bytes(flat, state);
  const auto [first, last] = held(flat, state);
  const DType type = state == State::parameter ? layout.flat(flat).dtype : DType::fp32;
  const auto count = static_cast<std::int64_t>(values.size());
  for (std::int64_t done = 0; done < count; done += kChunkNumel) {
    const std::int64_t numel = std::min(kChunkNumel, count - done);
    staging.resize(static_cast<std::size_t>(numel * element));
    executor->read_persistent(buffer, (offset + done - first) * element, staging);
    kernels::cast({}, numel, type, staging.data(), DType::fp32, values.data() + done);
  }
}

namespace {

void check_fill(const Engine::Fill& fill) {
  if (!fill)
    throw UsageError("initialize: fill is empty; give a function that sets the elements it is asked for");
}

// One run of elements of each parameter, the same on all ranks.
std::uint64_t sample_of(const Layout& layout, const Engine::Fill& fill) {
  constexpr std::int64_t kSampled = 16;
  std::uint64_t hash = 0;
  for (ParameterId id = 0; id < layout.parameters(); ++id) {
    const Place& place = layout.place(id);
    if (place.home != id) continue;  // tied
    std::array<float, kSampled> values{};
    const std::int64_t numel = std::min(kSampled, place.numel);
    const auto begin = static_cast<std::int64_t>(XXH3_64bits(&id, sizeof id) %
                                                 static_cast<std::uint64_t>(place.numel - numel + 1));
    fill(id, begin, std::span(values).first(static_cast<std::size_t>(numel)));
    hash = XXH3_64bits_withSeed(values.data(), sizeof values, hash);
  }
  return hash;
}

}  // namespace

void Engine::initialize(const Fill& fill) {
  Impl& impl = *impl_;
  impl.guarded(
      "initialize", [&] { check_fill(fill); },
      [&] {
        impl.check_between_steps("initialize");
        const std::uint64_t sample = sample_of(impl.layout, fill);
        const InitialValues values = impl.fill_states(fill, sample);
        if (sample_of(impl.layout, fill) != sample)
          throw UsageError(
              "initialize: fill gives other values when it is asked for the same elements again; they must "
              "depend on the parameter and the element only, since each rank asks for what it holds");
        values.compare(impl.states);
      });
}

void Engine::initialize(const Fill& fill, std::uint64_t identity) {
  Impl& impl = *impl_;
  impl.guarded(
      "initialize", [&] { check_fill(fill); },
      [&] {
        impl.check_between_steps("initialize");
        impl.fill_states(fill, identity).compare(impl.states);
      });
}

InitialValues Engine::Impl::fill_states(const Fill& fill, std::uint64_t identity) {
  executor->drop_carried();
  given = 0;
  steps_applied = 0;
  scaler = LossScaler(options.loss_scaling.value_or(LossScaleOptions{}));
  InitialValues initial(identity, layout, partition, options.mesh, programs[0]);
  std::vector<float> values(static_cast<std::size_t>(kChunkNumel));
  for (FlatId flat = 0; flat < static_cast<FlatId>(layout.flats().size()); ++flat) {
    for (State state : {State::parameter, State::master, State::moment1, State::moment2})
      if (const BufferId buffer = own_buffer(flat, state); buffer >= 0) executor->clear_persistent(buffer);
    if (buffer_of(flat, State::parameter) < 0) continue;  // another pipeline rank's
    const auto [first, last] = held(flat, State::parameter);
    for (const Piece& piece : layout.pieces(flat, first, last)) {
      for (std::int64_t done = 0; done < piece.numel; done += kChunkNumel) {
        const std::span<float> chunk(values.data(),
                                     static_cast<std::size_t>(std::min(kChunkNumel, piece.numel - done)));
        fill(piece.parameter, piece.begin + done, chunk);
        initial.add(flat, chunk);
        store(flat, State::parameter, piece.offset + done, chunk);
        store(flat, State::master, piece.offset + done, chunk);
      }
    }
  }
  return initial;
}

namespace {

// The flat and the offset in it of an element range; the range checked.
std::pair<FlatId, std::int64_t> find_range(const Layout& layout, const char* call, ParameterId parameter,
                                           std::int64_t begin, std::size_t numel) {
  if (parameter < 0 || parameter >= layout.parameters())
    throw UsageError(fmt::format("{}: parameter {} does not exist; the model has 0 to {}", call, parameter,
                                 layout.parameters() - 1));
  const Place& place = layout.place(parameter);
  // Nothing is added to `begin` before it is known to be small.
  if (begin < 0 || begin > place.numel || numel > static_cast<std::size_t>(place.numel - begin))
    throw UsageError(fmt::format("{}: {} elements from {} on, of '{}', which has {}", call, numel, begin,
                                 layout.parameter(parameter).name, place.numel));
  return {place.flat, place.offset + begin};
}

}  // namespace

void Engine::finish_updates() {
  impl_->guarded("finish_updates", [&] {
    impl_->check_between_steps("finish_updates");
    if (impl_->executor->carried_from() >= 0) impl_->executor->finish_carried();
  });
}

void Engine::read(ParameterId parameter, State state, std::int64_t begin, std::span<float> values) {
  Impl& impl = *impl_;
  FlatId flat = -1;
  std::int64_t offset = 0;
  const auto check = [&] {
    std::tie(flat, offset) = find_range(impl.layout, "read", parameter, begin, values.size());
    if (!impl.exists(flat, state))
      throw UsageError(
          fmt::format("read: '{}' has no {}", impl.layout.parameter(parameter).name, name_of(state)));
  };
  impl.guarded("read", check, [&] {
    impl.check_between_steps("read");
    finish_updates();
    const std::int64_t numel = impl.held_numel(flat, state);
    const bool everywhere = numel == impl.layout.flat(flat).padded_numel && impl.options.mesh.pipeline == 1;
    if (everywhere) return impl.load(flat, state, offset, values);
    // Piece by piece from its owner.
    const std::int64_t end = offset + static_cast<std::int64_t>(values.size());
    for (std::int64_t at = offset; at < end;) {
      const int owner = impl.owner(flat, state, at);
      const std::int64_t piece_end = std::min((at / numel + 1) * numel, end);
      const std::span<float> part =
          values.subspan(static_cast<std::size_t>(at - offset), static_cast<std::size_t>(piece_end - at));
      if (owner == impl.world.rank()) impl.load(flat, state, at, part);
      const std::string what = fmt::format("{} elements from {} on of {} of {}", values.size(), begin,
                                           name_of(state), impl.layout.parameter(parameter).name);
      impl.states.broadcast(part.data(), static_cast<std::int64_t>(part.size_bytes()), owner, {what, "read"});
      at = piece_end;
    }
  });
}

void Engine::write(ParameterId parameter, State state, std::int64_t begin, std::span<const float> values) {
  Impl& impl = *impl_;
  FlatId flat = -1;
  std::int64_t offset = 0;
  const auto check = [&] {
    std::tie(flat, offset) = find_range(impl.layout, "write", parameter, begin, values.size());
    const bool trainable = impl.layout.flat(flat).trainable;
    if (!impl.exists(flat, state) || (state == State::parameter && trainable))
      throw UsageError(fmt::format("write: '{}' {}", impl.layout.parameter(parameter).name,
                                   state == State::parameter
                                       ? "is trainable; write its master, which the parameter follows"
                                       : fmt::format("has no {}", name_of(state))));
  };
  impl.guarded("write", check, [&] {
    impl.check_between_steps("write");
    finish_updates();
    const std::int64_t where[] = {parameter, static_cast<std::int64_t>(state), begin};
    impl.given = XXH3_64bits_withSeed(where, sizeof where, impl.given);
    impl.given = XXH3_64bits_withSeed(values.data(), values.size_bytes(), impl.given);
    impl.store(flat, state, offset, values);
    if (state == State::master) impl.store(flat, State::parameter, offset, values);
  });
}

std::int64_t Engine::persistent_bytes(FlatId flat, State state) const {
  impl_->check_flat("persistent_bytes", flat);
  const BufferId buffer = impl_->own_buffer(flat, state);
  return buffer < 0 ? 0 : impl_->programs[0].buffers[static_cast<std::size_t>(buffer)].bytes;
}

std::span<std::byte> Engine::persistent(FlatId flat, State state) {
  impl_->check_finished("persistent");
  impl_->check_flat("persistent", flat);
  const BufferId buffer = impl_->own_buffer(flat, state);
  if (buffer < 0) return {};
  const Space space = impl_->programs[0].buffers[static_cast<std::size_t>(buffer)].space;
  const bool addressable =
      space == Space::host || (space == Space::device && impl_->options.device == DeviceType::cpu);
  if (!addressable) return {};
  return {impl_->executor->persistent_address(0, buffer),
          static_cast<std::size_t>(persistent_bytes(flat, state))};
}

void Engine::read_persistent(FlatId flat, State state, std::int64_t offset, std::span<std::byte> to) {
  const auto check = [&] { impl_->check_persistent("read_persistent", flat, state, offset, to.size()); };
  impl_->guarded("read_persistent", check, [&] {
    impl_->check_finished("read_persistent");
    impl_->executor->read_persistent(impl_->own_buffer(flat, state), offset, to);
  });
}

void Engine::write_persistent(FlatId flat, State state, std::int64_t offset,
                              std::span<const std::byte> from) {
  const auto check = [&] { impl_->check_persistent("write_persistent", flat, state, offset, from.size()); };
  impl_->guarded("write_persistent", check, [&] {
    impl_->check_finished("write_persistent");
    impl_->executor->write_persistent(impl_->own_buffer(flat, state), offset, from);
  });
}

void Engine::Impl::check_flat(const char* call, FlatId flat) const {
  const auto flats = static_cast<FlatId>(layout.flats().size());
  if (flat < 0 || flat >= flats)
    throw UsageError(fmt::format("{}: flat {} does not exist; the model has 0 to {}", call, flat, flats - 1));
}

void Engine::Impl::check_persistent(const char* call, FlatId flat, State state, std::int64_t offset,
                                    std::size_t bytes) const {
  check_flat(call, flat);
  const BufferId buffer = own_buffer(flat, state);
  const std::int64_t held = buffer < 0 ? 0 : programs[0].buffers[static_cast<std::size_t>(buffer)].bytes;
  if (buffer < 0 || offset < 0 || offset > held || static_cast<std::int64_t>(bytes) > held - offset)
    throw UsageError(fmt::format("{}: bytes [{}, {}) of the {} of flat {} are asked for; this rank has {}",
                                 call, offset, offset + static_cast<std::int64_t>(bytes), name_of(state),
                                 flat, held));
}

Engine::Counters Engine::counters() const {
  Counters counters{.steps_applied = impl_->steps_applied};
  if (impl_->options.loss_scaling) counters.loss_scaler = impl_->scaler.state();
  return counters;
}

void Engine::set_counters(const Counters& counters) {
  const auto check = [&] {
    if (counters.steps_applied < 0)
      throw UsageError(
          fmt::format("set_counters: steps_applied is {}; it cannot be negative", counters.steps_applied));
  };
  impl_->guarded("set_counters", check, [&] {
    impl_->check_between_steps("set_counters");
    if (const auto& scaling = impl_->options.loss_scaling) {
      LossScaler scaler(*scaling);
      if (counters.loss_scaler) scaler.restore(*counters.loss_scaler);
      impl_->scaler = scaler;
    }
    impl_->steps_applied = counters.steps_applied;
    impl_->given = 0;  // states that were restored are compared by who restores them
  });
}

}  // namespace tessera
