#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <utility>

#include "src/engine/engine_impl.h"

namespace tessera {
namespace {

void check_parameter(const Layout& layout, UnitId unit, ParameterId parameter) {
  const auto count =
      static_cast<ParameterId>(layout.units()[static_cast<std::size_t>(unit)].parameters.size());
  const ParameterId first = layout.first_parameter(unit);
  if (parameter >= first && parameter < first + count) return;
  if (count == 0)
    throw UsageError(fmt::format("parameter {} is not of unit '{}', which has no parameters", parameter,
                                 layout.units()[static_cast<std::size_t>(unit)].name));
  throw UsageError(fmt::format("parameter {} is not of unit '{}', which has parameters {} to {}", parameter,
                               layout.units()[static_cast<std::size_t>(unit)].name, first,
                               first + count - 1));
}

}  // namespace

// Opens the next use of the program, which must be this one, and makes its gradients ready to be written.
InstructionId Engine::Impl::open(const char* call, UnitId unit, Pass pass) {
  if (pass > Pass::backward)
    throw UsageError(
        fmt::format("{}: pass {} is none; use forward, recompute or backward", call, static_cast<int>(pass)));
  const auto asked = [&] {
    const bool known = unit >= 0 && unit < static_cast<int>(layout.units().size());
    return fmt::format(
        "{} of {}", name_of(pass),
        known ? layout.units()[static_cast<std::size_t>(unit)].name : fmt::format("unit {}", unit));
  };
  if (!running())
    throw UsageError(
        fmt::format("{}: {} was called while no step is running; call begin first", call, asked()));
  if (!open_uses.empty() && instruction(open_uses.back()).edge == UseEdge::whole)
    throw UsageError(
        fmt::format("{}: {} was called while the lease of {} is open, and the order does not nest them", call,
                    asked(), describe(program(), open_uses.back())));
  const InstructionId next = executor->advance();
  const Instruction& wanted = instruction(next);
  if (wanted.op != Opcode::use || wanted.edge == UseEdge::close || wanted.unit != unit || wanted.pass != pass)
    throw UsageError(fmt::format("{}: {} was called, but the program expects {}", call, asked(), expected()));
  executor->open_use(next);
  open_uses.push_back(next);
  if (pass == Pass::backward) prepare_gradients(next);
  // An opened use is complete at once for the program; its closing instruction stands for the rest.
  if (wanted.edge == UseEdge::open) executor->close_use(next);
  return next;
}

void Engine::Impl::close(InstructionId use) {
  const Instruction& closing = instruction(use);
  if (closing.edge == UseEdge::close) executor->open_use(use);
  if (closing.pass == Pass::backward) {
    const ParameterId first = layout.first_parameter(closing.unit);
    const auto count = layout.units()[static_cast<std::size_t>(closing.unit)].parameters.size();
    for (ParameterId id = first; id < first + static_cast<ParameterId>(count); ++id)
      written_in[static_cast<std::size_t>(layout.place(id).home)] = stamp(use);
  }
  executor->close_use(use);
  executor->advance();
}

// Where a gradient's lifetime begins, its padding is zeroed (all of it, for trainers that only add): it
// enters sums and norms.
void Engine::Impl::prepare_gradients(InstructionId use) {
  for (FlatId flat : layout.flats_used_by(instruction(use).unit)) {
    const Flat& spec = layout.flat(flat);
    if (!spec.trainable) continue;
    bool first = true;
    for (ParameterId id : spec.parameters) first &= written_in[static_cast<std::size_t>(id)] != stamp(use);
    if (!first) continue;
    std::byte* gradient =
        executor->address(program().flat_buffers[static_cast<std::size_t>(flat)].gradient, use);
    const std::int64_t element = bytes_of(spec.dtype);
    if (options.zero_gradients) {
      executor->zero(gradient, spec.padded_numel * element);
      for (ParameterId id : spec.parameters) written_in[static_cast<std::size_t>(id)] = stamp(use);
      continue;
    }
    for (const Piece& gap : executor->gaps(flat))
      executor->zero(gradient + gap.offset * element, gap.numel * element);
  }
}

// What the skipped use would have written and others read: as if it had contributed nothing.
void Engine::Impl::zero_unwritten(InstructionId use) {
  const Instruction& skipped = instruction(use);
  zero_activations(use);
  if (skipped.pass != Pass::backward) return;
  const ParameterId first = layout.first_parameter(skipped.unit);
  const auto count = layout.units()[static_cast<std::size_t>(skipped.unit)].parameters.size();
  for (ParameterId id = first; id < first + static_cast<ParameterId>(count); ++id) {
    const Place& place = layout.place(id);
    const Flat& flat = layout.flat(place.flat);
    if (!flat.trainable || written_in[static_cast<std::size_t>(place.home)] == stamp(use)) continue;
    const std::int64_t element = bytes_of(flat.dtype);
    std::byte* gradient =
        executor->address(program().flat_buffers[static_cast<std::size_t>(place.flat)].gradient, use);
    executor->zero(gradient + place.offset * element, place.numel * element);
  }
}

// An output, and the gradient of the unit's input, which may go on to another pipeline rank.
void Engine::Impl::zero_activations(InstructionId use) {
  const Instruction& skipped = instruction(use);
  const auto unit = static_cast<std::size_t>(skipped.unit);
  BufferId written = -1;
  if (skipped.pass == Pass::forward)
    written = program().unit_buffers[unit].output.of(skipped.microbatch);
  else if (skipped.pass == Pass::backward && unit > 0)
    written = program().unit_buffers[unit - 1].output_gradient.of(skipped.microbatch);
  if (written < 0 || !std::ranges::binary_search(skipped.writes, written)) return;
  executor->zero(executor->address(written, use), program().buffers[static_cast<std::size_t>(written)].bytes);
}

UnitLease Engine::use(UnitId unit, Pass pass) {
  return impl_->guarded("use", [&] { return UnitLease(impl_->self, impl_->open("use", unit, pass)); });
}

void Engine::skip(UnitId unit, Pass pass) {
  impl_->guarded("skip", [&] {
    const InstructionId use = impl_->open("skip", unit, pass);
    if (impl_->instruction(use).edge != UseEdge::whole)
      throw UsageError(fmt::format("skip: {} has other uses inside it; skip only uses that have none",
                                   describe(impl_->program(), use)));
    impl_->zero_unwritten(use);
    impl_->open_uses.pop_back();
    impl_->close(use);
  });
}

UnitLease::UnitLease(std::shared_ptr<Engine*> engine, InstructionId instruction)
    : engine_(std::move(engine)), instruction_(instruction) {}

UnitLease::UnitLease(UnitLease&& other) noexcept = default;

UnitLease& UnitLease::operator=(UnitLease&& other) noexcept {
  UnitLease taken(std::move(other));
  std::swap(engine_, taken.engine_);
  std::swap(instruction_, taken.instruction_);
  return *this;
}

Engine& UnitLease::engine() const {
  if (!engine_) throw UsageError("the lease has ended; its pointers and calls are no longer valid");
  if (*engine_ == nullptr)
    throw UsageError("the lease's engine was destroyed; end all leases before, their pointers lie in it");
  return **engine_;
}

UnitLease::~UnitLease() {
  if (!engine_ || *engine_ == nullptr) return;
  try {
    engine().fail(fmt::format("the lease of {} was destroyed before end(){}",
                              describe(engine().impl_->program(), instruction_),
                              std::uncaught_exceptions() > 0 ? ", by an exception" : ""));
  } catch (...) {  // a destructor has nobody to tell; the flag is set or memory is gone
  }
}

UnitId UnitLease::unit() const { return engine().impl_->instruction(instruction_).unit; }

Pass UnitLease::pass() const { return engine().impl_->instruction(instruction_).pass; }

int UnitLease::microbatch() const { return engine().impl_->instruction(instruction_).microbatch; }

View UnitLease::parameter(ParameterId parameter) const {
  Engine::Impl& impl = *engine().impl_;
  check_parameter(impl.layout, unit(), parameter);
  const UnitSpec& spec = impl.layout.units()[static_cast<std::size_t>(unit())];
  if (!reads_parameters(spec, pass()))
    throw UsageError(fmt::format("parameter '{}' in {} of {}: the unit is declared read_in_forward_only",
                                 impl.layout.parameter(parameter).name, name_of(pass()), spec.name));
  const Place& place = impl.layout.place(parameter);
  const DType dtype = impl.layout.flat(place.flat).dtype;
  std::byte* base = impl.executor->address(
      impl.program().flat_buffers[static_cast<std::size_t>(place.flat)].gathered, instruction_);
  return {base + place.offset * bytes_of(dtype), place.numel, dtype};
}

View UnitLease::gradient(ParameterId parameter) const {
  Engine::Impl& impl = *engine().impl_;
  check_parameter(impl.layout, unit(), parameter);
  const Place& place = impl.layout.place(parameter);
  const Flat& flat = impl.layout.flat(place.flat);
  if (pass() != Pass::backward || !flat.trainable)
    throw UsageError(
        fmt::format("gradient of '{}' in {} of {}: {}", impl.layout.parameter(parameter).name,
                    name_of(pass()), impl.program().units[static_cast<std::size_t>(unit())],
                    flat.trainable ? "gradients exist in backward only" : "a frozen parameter has none"));
  std::byte* base = impl.executor->address(
      impl.program().flat_buffers[static_cast<std::size_t>(place.flat)].gradient, instruction_);
  return {base + place.offset * bytes_of(flat.dtype), place.numel, flat.dtype};
}

float UnitLease::gradient_beta(ParameterId parameter) const {
  gradient(parameter);  // the same checks
  Engine::Impl& impl = *engine().impl_;
  const ParameterId home = impl.layout.place(parameter).home;
  // A parameter that the unit has twice is written by the first of the two.
  const bool written = impl.repeated[static_cast<std::size_t>(parameter)] ||
                       impl.written_in[static_cast<std::size_t>(home)] == impl.stamp(instruction_);
  return written ? 1.0f : 0.0f;
}

float UnitLease::gradient_beta() const {
  const Layout& layout = engine().layout();
  const ParameterId first = layout.first_parameter(unit());
  const auto count =
      static_cast<ParameterId>(layout.units()[static_cast<std::size_t>(unit())].parameters.size());
  float common = -1.0f;
  for (ParameterId id = first; id < first + count; ++id) {
    if (!layout.flat(layout.place(id).flat).trainable) continue;
    const float beta = gradient_beta(id);
    if (common >= 0 && beta != common)
      throw UsageError(
          fmt::format("gradient_beta: the gradients of unit '{}' differ, as it shares tied parameters; "
                      "ask for each with gradient_beta(parameter)",
                      layout.units()[static_cast<std::size_t>(unit())].name));
    common = beta;
  }
  return std::max(common, 0.0f);
}

void UnitLease::end() {
  Engine::Impl& impl = *engine().impl_;
  impl.guarded("end", [&] {
    if (impl.open_uses.empty() || impl.open_uses.back() != instruction_)
      throw UsageError(
          fmt::format("end: the lease of {} is not the innermost open one; the program expects {}",
                      describe(impl.program(), instruction_), impl.expected()));
    InstructionId closing = instruction_;
    if (impl.instruction(instruction_).edge == UseEdge::open) {
      closing = impl.executor->advance();
      const Instruction& next = impl.instruction(closing);
      if (next.op != Opcode::use || next.edge != UseEdge::close || next.unit != unit())
        throw UsageError(fmt::format("end: the lease of {} ends, but the program expects {}",
                                     describe(impl.program(), instruction_), impl.expected()));
    }
    impl.open_uses.pop_back();
    engine_.reset();
    impl.close(closing);
  });
}

}  // namespace tessera
