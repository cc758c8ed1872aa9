// What checkpoints are made of and by: persistent buffers, readers beside steps, loading, counters.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "src/engine/engine_impl.h"

namespace tessera {

std::int64_t Engine::persistent_bytes(FlatId flat, StateKind state) const {
  impl_->check_flat("persistent_bytes", flat);
  const BufferId buffer = impl_->own_buffer(flat, state);
  return buffer < 0 ? 0 : impl_->programs[0].buffers[buffer].bytes;
}

std::span<std::byte> Engine::persistent(FlatId flat, StateKind state) {
  impl_->check_finished("persistent");
  impl_->check_flat("persistent", flat);
  const BufferId buffer = impl_->own_buffer(flat, state);
  if (buffer < 0) return {};
  const Space space = impl_->programs[0].buffers[buffer].space;
  const bool addressable =
      space == Space::host || (space == Space::device && impl_->options.device == DeviceType::cpu);
  if (!addressable) return {};
  return {impl_->executor->persistent_address(0, buffer),
          static_cast<std::size_t>(persistent_bytes(flat, state))};
}

void Engine::read_persistent(FlatId flat, StateKind state, std::int64_t offset, std::span<std::byte> to) {
  const auto check = [&] { impl_->check_persistent("read_persistent", flat, state, offset, to.size()); };
  impl_->guarded("read_persistent", check, [&] {
    impl_->check_finished("read_persistent");
    impl_->executor->read_persistent(impl_->own_buffer(flat, state), offset, to);
  });
}

void Engine::write_persistent(FlatId flat, StateKind state, std::int64_t offset,
                              std::span<const std::byte> from) {
  const auto check = [&] {
    impl_->check_persistent("write_persistent", flat, state, offset, from.size());
    if (std::ranges::any_of(impl_->readers, [](const auto& reader) { return !reader.expired(); }))
      throw UsageError(
          "write_persistent: states are being read, for a checkpoint say; call wait_for_readers() on every "
          "rank first");
  };
  impl_->guarded("write_persistent", check, [&] {
    impl_->check_finished("write_persistent");
    ++impl_->changes;
    impl_->executor->write_persistent(impl_->own_buffer(flat, state), offset, from);
  });
}

void Engine::add_reader(const std::shared_ptr<StatesReader>& reader) {
  const auto check = [&] {
    if (!reader) throw UsageError("add_reader: reader is null");
    impl_->check_whole("add_reader");
    impl_->check_finished("add_reader");
    impl_->executor->open_beside();
  };
  impl_->guarded("add_reader", check, [&] {
    std::erase_if(impl_->readers, [](const auto& one) { return one.expired(); });
    impl_->readers.push_back(reader);
  });
}

Space Engine::persistent_space(FlatId flat, StateKind state) const {
  impl_->check_flat("persistent_space", flat);
  const BufferId buffer = impl_->own_buffer(flat, state);
  if (buffer < 0)
    throw UsageError(
        fmt::format("persistent_space: this rank has no {} of flat {} by itself", name_of(state), flat));
  return impl_->programs[0].buffers[buffer].space;
}

// Another thread's: of what this engine does meanwhile nothing is looked at.
void Engine::read_beside(FlatId flat, StateKind state, std::int64_t offset, std::span<std::byte> to) const {
  impl_->check_persistent("read_beside", flat, state, offset, to.size());
  if (persistent_space(flat, state) == Space::disk)
    throw UsageError("read_beside: it lies on the disk, which one thread reads; call read_persistent()");
  impl_->executor->read_beside(impl_->own_buffer(flat, state), offset, to);
}

void Engine::begin_loading(std::string from) {
  const auto check = [&] { impl_->check_finished("begin_loading"); };
  impl_->guarded("begin_loading", check, [&] { impl_->loading.emplace(std::move(from)); });
}

void Engine::end_loading() {
  impl_->guarded("end_loading", [&] { impl_->loading.reset(); });
}

void Engine::wait_for_readers() {
  impl_->guarded("wait_for_readers", [&] {
    impl_->check_between_steps("wait_for_readers");
    impl_->before_change();
  });
}

void Engine::Impl::before_change() {
  evaluated_last = false;
  ++changes;
  for (; !readers.empty(); readers.erase(readers.begin()))
    if (const std::shared_ptr<StatesReader> reader = readers.front().lock()) reader->before_change();
}

void Engine::Impl::check_flat(const char* call, FlatId flat) const {
  const auto flats = layout.flats().count();
  if (flat < 0 || flat >= flats)
    throw UsageError(fmt::format("{}: flat {} does not exist; the model has 0 to {}", call, flat, flats - 1));
}

void Engine::Impl::check_persistent(const char* call, FlatId flat, StateKind state, std::int64_t offset,
                                    std::size_t bytes) const {
  check_flat(call, flat);
  const BufferId buffer = own_buffer(flat, state);
  const std::int64_t held = buffer < 0 ? 0 : programs[0].buffers[buffer].bytes;
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
  LossScaler scaler = impl_->scaler;
  const auto check = [&] {
    impl_->check_between_steps("set_counters");
    if (counters.steps_applied < 0)
      throw UsageError(
          fmt::format("set_counters: steps_applied is {}; it cannot be negative", counters.steps_applied));
    if (const auto& scaling = impl_->options.loss_scaling) {
      scaler = LossScaler(*scaling);
      if (counters.loss_scaler) scaler.restore(*counters.loss_scaler);
    }
  };
  impl_->guarded("set_counters", check, [&] {
    impl_->scaler = scaler;
    impl_->steps_applied = counters.steps_applied;
  });
}

}  // namespace tessera
