// Parameters and optimizer state by global coordinates, between steps; gradients behind a step's uses.
#include <fmt/format.h>

#include <algorithm>

#include "kernels/casts.h"
#include "src/engine/compare_given.h"
#include "src/engine/engine_impl.h"

namespace tessera {

void Engine::Impl::find_states() {
  states_of.assign(layout.flats().size(), {-1, -1, -1, -1});
  const IdVector<Buffer>& buffers = programs[0].buffers;
  for (BufferId id = 0; id < buffers.count(); ++id) {
    const Buffer& buffer = buffers[id];
    if (!buffer.persistent || buffer.flat < 0) continue;
    const auto is = [&](StateKind state) { states_of[buffer.flat][state] = id; };
    if (buffer.role == BufferRole::parameter) is(StateKind::parameter);
    if (buffer.role == BufferRole::master) is(StateKind::master);
    if (buffer.role == BufferRole::moment) is(buffer.index == 0 ? StateKind::moment1 : StateKind::moment2);
  }
  for (FlatId flat = 0; flat < states_of.count(); ++flat) {  // their own masters
    const Flat& spec = layout.flat(flat);
    if (spec.trainable && spec.dtype == DType::fp32)
      states_of[flat][StateKind::master] = buffer_of(flat, StateKind::parameter);
  }
}

BufferId Engine::Impl::own_buffer(FlatId flat, StateKind state) const {
  const BufferId buffer = buffer_of(flat, state);
  return state == StateKind::master && buffer == buffer_of(flat, StateKind::parameter) ? -1 : buffer;
}

DType Engine::Impl::stored_type(FlatId flat, StateKind state) const {
  if (state == StateKind::parameter) return layout.flat(flat).dtype;
  return state == StateKind::master ? DType::fp32 : options.optimizer.moment_type;
}

bool Engine::Impl::exists(FlatId flat, StateKind state) const {
  if (state == StateKind::parameter) return true;
  if (!layout.flat(flat).trainable) return false;
  return state == StateKind::master ||
         static_cast<int>(state) - static_cast<int>(StateKind::moment1) < options.optimizer.moments();
}

Spread Engine::Impl::spread_of(FlatId flat, StateKind state) const {
  // An fp32 parameter is its own master.
  const bool as_parameter =
      state == StateKind::parameter || (state == StateKind::master && layout.flat(flat).dtype == DType::fp32);
  return as_parameter ? spreads.parameters : spreads.states;
}

int Engine::Impl::owner(FlatId flat, const Spread& spread, std::int64_t offset, int tensor_rank) const {
  const Flat& spec = layout.flat(flat);
  Coordinates at = owner_of(spec, spread, offset);
  at[Axis::pipeline] = partition.rank_of(spec.unit);
  at[Axis::tensor] = tensor_rank;
  return options.mesh.rank(at);
}

namespace {

// Calls visit(begin, end, runs) for parts of a range of a cut parameter: where its elements are, and the part
// [begin, end) of a tensor rank's share in which those of one block are neighbours, with nothing but padding
// between.
template <typename Visit>
void each_share(const TensorShares& shares, std::int64_t begin, std::int64_t end, const Visit& visit) {
  constexpr std::int64_t kPartNumel = 1 << 20;
  for (std::int64_t at = begin; at < end; at += kPartNumel) {
    std::vector<std::vector<ShareRun>> of_blocks(static_cast<std::size_t>(shares.blocks()));
    for (const ShareRun& run : shares.of_parameter(at, std::min(at + kPartNumel, end)))
      of_blocks[static_cast<std::size_t>(shares.block_of(run))].push_back(run);
    for (const std::vector<ShareRun>& runs : of_blocks)
      if (!runs.empty()) visit(runs.front().local, runs.back().local + runs.back().numel, runs);
  }
}

}  // namespace

// Collective: every rank learns of a range of a tensor rank's share what its owners `load`.
template <typename Load>
void Engine::Impl::bring_share(const Wanted& wanted, const Spread& spread, int tensor_rank,
                               std::int64_t begin, std::span<float> values, const Load& load) {
  const Place& place = layout.place(wanted.parameter);
  const std::int64_t offset = place.offset + begin, end = offset + static_cast<std::int64_t>(values.size());
  const std::int64_t numel = numel_of(layout.flat(place.flat), spread);
  for (std::int64_t at = offset; at < end;) {
    const int root = owner(place.flat, spread, at, tensor_rank);
    const std::int64_t piece_end = std::min((at / numel + 1) * numel, end);
    const std::span<float> part =
        values.subspan(static_cast<std::size_t>(at - offset), static_cast<std::size_t>(piece_end - at));
    if (root == world.rank()) load(at, part);
    states.broadcast(part.data(), static_cast<std::int64_t>(part.size_bytes()), root,
                     {wanted.what, wanted.call});
    at = piece_end;
  }
}

// Collective: every rank learns of a range of the whole parameter, share by share.
template <typename Load>
void Engine::Impl::bring(const Wanted& wanted, const Spread& spread, const Load& load) {
  const TensorShares& shares = layout.shares(wanted.parameter);
  if (shares.is_whole()) return bring_share(wanted, spread, 0, wanted.begin, wanted.values, load);
  const std::int64_t end = wanted.begin + static_cast<std::int64_t>(wanted.values.size());
  std::vector<float> share;
  each_share(shares, wanted.begin, end,
             [&](std::int64_t first, std::int64_t last, const std::vector<ShareRun>& runs) {
               share.resize(static_cast<std::size_t>(last - first));
               bring_share(wanted, spread, runs.front().tensor_rank, first, share, load);
               for (const ShareRun& run : runs)
                 std::copy_n(share.begin() + (run.local - first), run.numel,
                             wanted.values.begin() + (run.global - wanted.begin));
             });
}

void Engine::Impl::check_between_steps(const char* call) const {
  if (running()) throw UsageError(fmt::format("{}: a step is running; call it between steps", call));
}

void Engine::Impl::check_whole(const char* call) const {
  if (loading)
    throw UsageError(
        fmt::format("{}: the states are undefined, as loading from {} did not end; load another checkpoint, "
                    "or initialize() first",
                    call, *loading));
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
void Engine::Impl::store(FlatId flat, StateKind state, std::int64_t offset, std::span<const float> values) {
  const BufferId buffer = buffer_of(flat, state);
  if (buffer < 0) return;
  const auto [first, last] = held(flat, state);
  const std::int64_t begin = std::max(offset, first);
  const std::int64_t end = std::min(offset + static_cast<std::int64_t>(values.size()), last);
  if (begin >= end) return;
  const DType type = stored_type(flat, state);
  for (std::int64_t done = begin; done < end; done += kChunkNumel) {
    const std::int64_t numel = std::min(kChunkNumel, end - done);
    staging.resize(static_cast<std::size_t>(numel * bytes_of(type)));
    kernels::cast({}, numel, DType::fp32, values.data() + (done - offset), type, staging.data());
    executor->write_persistent(buffer, (done - first) * bytes_of(type), staging);
  }
}

// The same of a range of the whole parameter.
void Engine::Impl::store_parameter(ParameterId parameter, StateKind state, std::int64_t begin,
                                   std::span<const float> values) {
  const Place& place = layout.place(parameter);
  const TensorShares& shares = layout.shares(parameter);
  if (shares.is_whole()) return store(place.flat, state, place.offset + begin, values);
  const std::int64_t end = begin + static_cast<std::int64_t>(values.size());
  std::vector<float> share;
  each_share(
      shares, begin, end, [&](std::int64_t first, std::int64_t last, const std::vector<ShareRun>& runs) {
        if (runs.front().tensor_rank != coordinates[Axis::tensor]) return;
        share.assign(static_cast<std::size_t>(last - first), 0.0f);
        for (const ShareRun& run : runs)
          std::copy_n(values.begin() + (run.global - begin), run.numel, share.begin() + (run.local - first));
        store(place.flat, state, place.offset + first, share);
      });
}

void Engine::Impl::load(FlatId flat, StateKind state, std::int64_t offset, std::span<float> values) {
  const BufferId buffer = buffer_of(flat, state);
  const std::int64_t first = held(flat, state).begin;
  const DType type = stored_type(flat, state);
  load(type, values, [&](std::int64_t done, std::span<std::byte> bytes) {
    executor->read_persistent(buffer, (offset + done - first) * bytes_of(type), bytes);
  });
}

template <typename Read>
void Engine::Impl::load(DType type, std::span<float> values, const Read& read) {
  const auto count = static_cast<std::int64_t>(values.size());
  for (std::int64_t done = 0; done < count; done += kChunkNumel) {
    const std::int64_t numel = std::min(kChunkNumel, count - done);
    staging.resize(static_cast<std::size_t>(numel * bytes_of(type)));
    read(done, staging);
    kernels::cast({}, numel, type, staging.data(), DType::fp32, values.data() + done);
  }
}

namespace {

void check_range(const Layout& layout, const char* call, ParameterId parameter, std::int64_t begin,
                 std::size_t numel) {
  if (parameter < 0 || parameter >= layout.parameters())
    throw UsageError(fmt::format("{}: parameter {} does not exist; the model has 0 to {}", call, parameter,
                                 layout.parameters() - 1));
  const std::int64_t all = layout.shares(parameter).global_numel();
  // Nothing is added to `begin` before it is known to be small.
  if (begin < 0 || begin > all || numel > static_cast<std::size_t>(all - begin))
    throw UsageError(fmt::format("{}: {} elements from {} on, of '{}', which has {}", call, numel, begin,
                                 layout.parameter(parameter).name, all));
}

}  // namespace

void Engine::finish_updates() {
  impl_->guarded("finish_updates", [&] {
    impl_->check_between_steps("finish_updates");
    if (impl_->executor->carried_from() >= 0) impl_->executor->finish_carried();
  });
}

void Engine::read(ParameterId parameter, StateKind state, std::int64_t begin, std::span<float> values) {
  Impl& impl = *impl_;
  const auto check = [&] {
    impl.check_whole("read");
    check_range(impl.layout, "read", parameter, begin, values.size());
    if (!impl.exists(impl.layout.place(parameter).flat, state))
      throw UsageError(
          fmt::format("read: '{}' has no {}", impl.layout.parameter(parameter).name, name_of(state)));
  };
  impl.guarded("read", check, [&] {
    impl.check_between_steps("read");
    finish_updates();
    const Place& place = impl.layout.place(parameter);
    const Spread spread = impl.spread_of(place.flat, state);
    const bool everywhere =
        spread == kWhole && impl.options.mesh.pipeline == 1 && impl.layout.shares(parameter).is_whole();
    if (everywhere) return impl.load(place.flat, state, place.offset + begin, values);
    const std::string what = fmt::format("{} elements from {} on of {} of {}", values.size(), begin,
                                         name_of(state), impl.layout.parameter(parameter).name);
    impl.bring(
        {.parameter = parameter, .begin = begin, .values = values, .what = what, .call = "read"}, spread,
        [&](std::int64_t offset, std::span<float> part) { impl.load(place.flat, state, offset, part); });
  });
}

void Engine::read_gradient(ParameterId parameter, std::int64_t begin, std::span<float> values) {
  Impl& impl = *impl_;
  const auto check = [&] {
    check_range(impl.layout, "read_gradient", parameter, begin, values.size());
    if (!impl.layout.flat(impl.layout.place(parameter).flat).trainable)
      throw UsageError(fmt::format("read_gradient: '{}' is frozen; it has no gradient",
                                   impl.layout.parameter(parameter).name));
  };
  impl.guarded("read_gradient", check, [&] {
    if (!impl.running() || impl.program().kind != StepKind::train)
      throw UsageError("read_gradient: no training step is running; call it behind a step's last use");
    if (impl.executor->updates_early())
      throw UsageError(
          "read_gradient: with strategy.update reduced gradients are gone as soon as they are reduced");
    impl.check_uses_done("read_gradient");
    impl.executor->synchronize_lanes();
    const FlatId flat = impl.layout.place(parameter).flat;
    const std::string what = fmt::format("{} elements from {} on of the gradient of {}", values.size(), begin,
                                         impl.layout.parameter(parameter).name);
    impl.bring(
        {.parameter = parameter, .begin = begin, .values = values, .what = what, .call = "read_gradient"},
        kSlice, [&](std::int64_t offset, std::span<float> part) {
          impl.load(impl.executor->reduced_type(flat), part,
                    [&](std::int64_t done, std::span<std::byte> bytes) {
                      impl.executor->read_gradient(flat, offset + done, bytes);
                    });
        });
  });
}

void Engine::write(ParameterId parameter, StateKind state, std::int64_t begin,
                   std::span<const float> values) {
  Impl& impl = *impl_;
  const auto check = [&] {
    impl.check_whole("write");
    check_range(impl.layout, "write", parameter, begin, values.size());
    const FlatId flat = impl.layout.place(parameter).flat;
    const bool trainable = impl.layout.flat(flat).trainable;
    if (!impl.exists(flat, state) || (state == StateKind::parameter && trainable))
      throw UsageError(fmt::format("write: '{}' {}", impl.layout.parameter(parameter).name,
                                   state == StateKind::parameter
                                       ? "is trainable; write its master, which the parameter follows"
                                       : fmt::format("has no {}", name_of(state))));
  };
  impl.guarded("write", check, [&] {
    impl.check_between_steps("write");
    finish_updates();
    compare_given(
        impl.states,
        {.layout = impl.layout, .parameter = parameter, .state = state, .begin = begin, .values = values});
    impl.before_change();
    impl.store_parameter(parameter, state, begin, values);
    if (state == StateKind::master) impl.store_parameter(parameter, StateKind::parameter, begin, values);
  });
}

}  // namespace tessera
