#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <utility>

#include "src/engine/engine_impl.h"
#include "tessera/step_spec.h"

namespace tessera {
namespace {

void check_parameter(const Layout& layout, UnitId unit, ParameterId parameter) {
  const auto count = static_cast<ParameterId>(layout.units()[unit].parameters.size());
  const ParameterId first = layout.first_parameter(unit);
  if (parameter >= first && parameter < first + count) return;
  if (count == 0)
    throw UsageError(fmt::format("parameter {} is not of unit '{}', which has no parameters", parameter,
                                 layout.units()[unit].name));
  throw UsageError(fmt::format("parameter {} is not of unit '{}', which has parameters {} to {}", parameter,
                               layout.units()[unit].name, first, first + count - 1));
}

}  // namespace

void TensorView::check_element(bool asks_for_float) const {
  if (asks_for_float == (dtype == DType::fp32)) return;
  throw UsageError(fmt::format("'{}' is {} and was asked for as {}; ask for {}, or declare it otherwise",
                               name, name_of(dtype), asks_for_float ? "float" : "a type of 2 bytes",
                               asks_for_float ? "a type of 2 bytes" : "float"));
}

// Opens the next use of the program, which must be this one, and makes its gradients ready to be written.
InstructionId Engine::Impl::open(const char* call, UnitId unit, Pass pass) {
  if (pass > Pass::weight_gradient)
    throw UsageError(fmt::format("{}: pass {} is none; use forward, recompute, backward or weight_gradient",
                                 call, static_cast<int>(pass)));
  const auto asked = [&] {
    const bool known = unit >= 0 && unit < layout.units().count();
    return fmt::format("{} of {}", name_of(pass),
                       known ? layout.units()[unit].name : fmt::format("unit {}", unit));
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
  // An opened use is complete at once for the program; its closing instruction stands for the rest.
  if (wanted.edge == UseEdge::open) executor->close_use(next);
  return next;
}

void Engine::Impl::close(InstructionId use) {
  if (instruction(use).edge == UseEdge::close) executor->open_use(use);
  executor->close_use(use);
  executor->advance();
}

// An opened use has the operands of the instruction that closes it: what uses inside it wrote is there.
const Instruction& Engine::Impl::whole_use(InstructionId use) const {
  if (instruction(use).edge != UseEdge::open) return instruction(use);
  int depth = 0;
  for (;; ++use) {
    const Instruction& next = instruction(use);
    if (next.op != Opcode::use) continue;
    depth += next.edge == UseEdge::open ? 1 : next.edge == UseEdge::close ? -1 : 0;
    if (depth == 0) return next;
  }
}

// What the skipped use would have written and others read: as if it had contributed nothing.
void Engine::Impl::zero_unwritten(InstructionId use) {
  for (const Operand& operand : instruction(use).operands) {
    const bool handed_on = operand.role == Role::output || operand.role == Role::input_gradient ||
                           operand.role == Role::gradient;
    if (!handed_on || operand.access != Access::write) continue;
    const OperandPlace& place = executor->place_of(use, operand);
    executor->zero(place.address, place.bytes);
  }
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

int UnitLease::part() const { return engine().impl_->instruction(instruction_).part; }

void* UnitLease::value(ValueId value) const {
  Engine::Impl& impl = *engine().impl_;
  if (value < 0) return address(role_of(value));
  for (const Operand& operand : impl.instruction(instruction_).operands)
    if (operand.role == Role::value && operand.region.value == value)
      return impl.executor->place_of(instruction_, operand).address;
  return nullptr;
}

bool UnitLease::writes_gradients() const {
  return engine().impl_->instruction(instruction_).find(Role::gradient) != nullptr;
}

TensorGroup UnitLease::tensor() const {
  const Engine::Impl& impl = *engine().impl_;
  if (!impl.options.splits_layers)
    throw UsageError(
        "tensor: splits_layers is false, so leases give no collectives along the tensor axis; set it to true "
        "when the engine is made, on all ranks");
  return {engine_, impl.steps_begun, instruction_};
}

void* UnitLease::address(Role role) const {
  Engine::Impl& impl = *engine().impl_;
  const Operand* operand = impl.instruction(instruction_).find(role);
  return operand == nullptr ? nullptr : impl.executor->place_of(instruction_, *operand).address;
}

TensorView UnitLease::parameter(ParameterId parameter) const {
  Engine::Impl& impl = *engine().impl_;
  check_parameter(impl.layout, unit(), parameter);
  const UnitSpec& spec = impl.layout.units()[unit()];
  if (!reads_parameters(spec, pass()))
    throw UsageError(fmt::format(
        "parameter '{}' in {} of {}: {}", impl.layout.parameter(parameter).name, name_of(pass()), spec.name,
        pass() == Pass::weight_gradient ? "parameters are not gathered for weight gradients"
                                        : "the unit is declared read_in_forward_only"));
  const Place& place = impl.layout.place(parameter);
  for (const Operand& operand : impl.instruction(instruction_).operands) {
    if (operand.role != Role::parameters || impl.program().buffers[operand.buffer].flat != place.flat)
      continue;
    std::byte* base = impl.executor->place_of(instruction_, operand).address;
    return {base + place.offset * bytes_of(operand.type), place.numel, operand.type,
            impl.layout.parameter(parameter).name};
  }
  throw Error(fmt::format("{} does not read '{}'", describe(impl.program(), instruction_),
                          impl.layout.parameter(parameter).name));
}

TensorView UnitLease::gradient(ParameterId parameter) const {
  Engine::Impl& impl = *engine().impl_;
  check_parameter(impl.layout, unit(), parameter);
  const Place& place = impl.layout.place(parameter);
  const Flat& flat = impl.layout.flat(place.flat);
  if (!is_of_backward(pass()) || !flat.trainable)
    throw UsageError(
        fmt::format("gradient of '{}' in {} of {}: {}", impl.layout.parameter(parameter).name,
                    name_of(pass()), impl.program().units[unit()].name,
                    flat.trainable ? "gradients exist in backward only" : "a frozen parameter has none"));
  const Operand& operand = impl.gradient_of(impl.instruction(instruction_), parameter);
  return {impl.executor->place_of(instruction_, operand).address, place.numel, flat.dtype,
          impl.layout.parameter(parameter).name};
}

float UnitLease::gradient_beta(ParameterId parameter) const {
  gradient(parameter);  // the same checks
  Engine::Impl& impl = *engine().impl_;
  const Operand& operand = impl.gradient_of(impl.whole_use(instruction_), parameter);
  return operand.access == Access::add ? 1.0f : 0.0f;
}

const PartSpec* Engine::Impl::part_of(const Instruction& use) const {
  if (use.part < 0) return nullptr;
  const EngineProgram& of = options.programs.at(static_cast<std::size_t>(executor->program_index()));
  return &of.activations.units[use.unit].parts[use.part];
}

// A use has one for each trainable parameter of its unit, or of those that its part is for, in their order: a
// tied one is named by its home, which the unit may have, too.
const Operand& Engine::Impl::gradient_of(const Instruction& use, ParameterId parameter) const {
  const PartSpec* part = part_of(use);
  const ParameterId first = layout.first_parameter(use.unit);
  const auto has = [&](ParameterId id) {
    return (part == nullptr || part->writes_gradient(id - first)) &&
           layout.flat(layout.place(id).flat).trainable;
  };
  int before = 0;
  for (ParameterId id = first; id < parameter; ++id) before += has(id) ? 1 : 0;
  for (const Operand& operand : use.operands)
    if (operand.role == Role::gradient && has(parameter) && before-- == 0) return operand;
  throw UsageError(fmt::format("{} of unit '{}' does not write the gradient of '{}'",
                               part == nullptr ? "a use" : fmt::format("part '{}'", part->name),
                               layout.units()[use.unit].name, layout.parameter(parameter).name));
}

float UnitLease::gradient_beta() const {
  const Layout& layout = engine().layout();
  const ParameterId first = layout.first_parameter(unit());
  const auto count = static_cast<ParameterId>(layout.units()[unit()].parameters.size());
  float common = -1.0f;
  for (ParameterId id = first; id < first + count; ++id) {
    if (!layout.flat(layout.place(id).flat).trainable) continue;
    const float beta = gradient_beta(id);
    if (common >= 0 && beta != common)
      throw UsageError(
          fmt::format("gradient_beta: the gradients of unit '{}' differ, as it shares tied parameters; "
                      "ask for each with gradient_beta(parameter)",
                      layout.units()[unit()].name));
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
