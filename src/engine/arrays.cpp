#include "tessera/arrays.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <optional>
#include <utility>

#include "tessera/id_vector.h"
#include "tessera/layout.h"
#include "tessera/program.h"

namespace tessera {
namespace {

constexpr int kMostUnits = 1 << 20;

std::string name_of_array(const ArraySpec& array, std::size_t index) {
  return array.name.empty() ? fmt::format("array{}", index) : array.name;
}

std::vector<ArraySpec> named(std::vector<ArraySpec> arrays) {
  for (std::size_t index = 0; index < arrays.size(); ++index)
    arrays[index].name = name_of_array(arrays[index], index);
  return arrays;
}

int parts_of(const ArraySpec& array) { return std::max(array.units, 1); }
std::int64_t part_numel(const ArraySpec& array) { return array.numel / parts_of(array); }

void check_array(const ArraySpec& array, const std::string& name) {
  const auto refuse = [&](const std::string& what) {
    throw UsageError(fmt::format("array '{}': {}", name, what));
  };
  if (array.numel < 1) refuse(fmt::format("numel is {}; it must be 1 or more", array.numel));
  if (array.units < 0 || array.units > kMostUnits)
    refuse(fmt::format("units is {}; it must be 0, for one part, to {}", array.units, kMostUnits));
  if (array.first_unit < 0 || array.first_unit > kMostUnits)
    refuse(fmt::format("first_unit is {}; it must be 0 to {}", array.first_unit, kMostUnits));
  if (array.numel % parts_of(array) != 0)
    refuse(fmt::format("numel is {} and units {}: parts are equal, so units must divide numel", array.numel,
                       array.units));
  if (array.also_in == 0) return;
  if (array.units > 1)
    refuse(
        fmt::format("also_in is {} and units {}: another unit reads an array whole; use units 0, or leave "
                    "also_in at 0",
                    array.also_in, array.units));
  if (array.also_in <= array.first_unit || array.also_in > kMostUnits)
    refuse(
        fmt::format("also_in is {} and first_unit {}: the unit that also reads it must be a later one, up "
                    "to {}",
                    array.also_in, array.first_unit, kMostUnits));
}

int count_units(std::span<const ArraySpec> arrays) {
  int count = 0;
  for (const ArraySpec& array : arrays)
    count = std::max({count, array.first_unit + parts_of(array), array.also_in + 1});
  return count;
}

// Calls visit(unit, array, part, tied) for every parameter, in the order of units and, in a unit, of arrays.
template <typename Visit>
void each_parameter(std::span<const ArraySpec> arrays, const Visit& visit) {
  for (UnitId unit = 0; unit < count_units(arrays); ++unit)
    for (std::size_t index = 0; index < arrays.size(); ++index) {
      const ArraySpec& array = arrays[index];
      if (unit >= array.first_unit && unit < array.first_unit + parts_of(array))
        visit(unit, index, unit - array.first_unit, false);
      else if (array.also_in != 0 && unit == array.also_in)
        visit(unit, index, 0, true);
    }
}

// As far as the base of an array may lie before one of its parts.
std::int64_t longest_stack_bytes(std::span<const ArraySpec> arrays) {
  std::int64_t longest = 0;
  for (const ArraySpec& array : arrays)
    longest = std::max(longest, (array.numel - part_numel(array)) * bytes_of(array.dtype));
  return longest;
}

EngineOptions options_for(std::span<const ArraySpec> arrays, EngineOptions options) {
  if (options.overwrites_gradients)
    throw UsageError(
        "overwrites_gradients is true, but a table of gradients cannot say where to overwrite: with arrays "
        "gradients begin at 0, leave it false");
  options.address_space_before = std::max(options.address_space_before, longest_stack_bytes(arrays));
  return options;
}

}  // namespace

std::vector<UnitSpec> units_of(std::span<const ArraySpec> arrays) {
  if (arrays.empty()) throw UsageError("arrays is empty; a model has at least one");
  for (std::size_t index = 0; index < arrays.size(); ++index)
    check_array(arrays[index], name_of_array(arrays[index], index));
  std::vector<UnitSpec> units(static_cast<std::size_t>(count_units(arrays)));
  each_parameter(arrays, [&](UnitId unit, std::size_t index, int part, bool tied) {
    const ArraySpec& array = arrays[index];
    const std::string name = name_of_array(array, index);
    units[static_cast<std::size_t>(unit)].parameters.push_back({.name = tied ? name + ".tied"
                                                                        : array.units > 0
                                                                            ? fmt::format("{}.{}", name, part)
                                                                            : name,
                                                                .shape = {part_numel(array)},
                                                                .dtype = array.dtype,
                                                                .trainable = !array.frozen,
                                                                .group = array.group,
                                                                .tied_to = tied ? name : ""});
  });
  for (std::size_t unit = 0; unit < units.size(); ++unit) {
    units[unit].name = fmt::format("unit{}", unit);
    if (units[unit].parameters.empty())
      throw UsageError(
          fmt::format("no array has a part in unit {}, and the last unit is {}: number the units "
                      "without gaps",
                      unit, units.size() - 1));
  }
  return units;
}

namespace {

// A table of the trainer's, of pointers to float or void, which have one representation. Entries are copied
// as bytes, since an object of one type must not be written as one of the other.
struct Table {
  std::byte* entries = nullptr;
  std::size_t count = 0;

  void set(std::size_t entry, void* pointer) const {
    if (entry < count) std::memcpy(entries + entry * sizeof pointer, &pointer, sizeof pointer);
  }
  void clear() const {
    for (std::size_t entry = 0; entry < count; ++entry) set(entry, nullptr);
  }
};
static_assert(sizeof(float*) == sizeof(void*));

template <typename Pointer>
Table table_of(std::span<Pointer> entries) {
  return {reinterpret_cast<std::byte*>(entries.data()), entries.size()};
}

}  // namespace

struct ArrayEngine::Impl {
  // One parameter that a unit reads.
  struct Entry {
    ParameterId parameter = 0;
    std::size_t array = 0;
    std::int64_t before_bytes = 0;  // from the array's base to this part
  };

  Impl(Communicator world, std::vector<ArraySpec> arrays_in, EngineOptions options)
      : arrays(named(std::move(arrays_in))),
        engine(std::move(world), units_of(arrays), options_for(arrays, std::move(options))),
        entries(engine.layout().units().count()),
        parts(arrays.size()) {
    ParameterId next = 0;
    each_parameter(arrays, [&](UnitId unit, std::size_t index, int part, bool tied) {
      const ArraySpec& array = arrays[index];
      entries[unit].push_back({.parameter = next,
                               .array = index,
                               .before_bytes = part * part_numel(array) * bytes_of(array.dtype)});
      if (!tied) parts[index].push_back(next);
      ++next;
    });
  }

  void bind(const Table& for_parameters, const Table& for_gradients) {
    const auto check = [&](const char* name, const Table& table) {
      if (table.count != arrays.size())
        throw UsageError(
            fmt::format("bind: {} has {} entries; there are {} arrays", name, table.count, arrays.size()));
    };
    check("parameters", for_parameters);
    if (for_gradients.count != 0) check("gradients", for_gradients);
    if (lease) throw UsageError("bind: a unit is entered; bind before, or leave() it first");
    const std::int64_t needed = longest_stack_bytes(arrays);
    if (engine.options().device == DeviceType::cpu && engine.address_space_before() < needed)
      throw EnvironmentError(
          fmt::format("bind: the system refused {} bytes of address space, without memory, that the bases of "
                      "stacked arrays lie in; raise the limit on it (ulimit -v)",
                      needed));
    parameters = for_parameters;
    gradients = for_gradients;
    clear();
  }

  // On a GPU a base may lie outside of what was allocated: it is an address to count from.
  static void* base_of(const Entry& entry, const TensorView& view) {
    return reinterpret_cast<void*>(reinterpret_cast<std::uintptr_t>(view.data) -
                                   static_cast<std::uintptr_t>(entry.before_bytes));
  }

  void clear() const {
    parameters.clear();
    gradients.clear();
  }

  // Whether the running program has the last unit. Pipeline ranks without it have no loss.
  bool has_last_unit() const {
    const UnitId last = entries.count() - 1;
    return std::ranges::any_of(engine.running().instructions, [&](const Instruction& instruction) {
      return instruction.op == Opcode::use && instruction.unit == last;
    });
  }

  // The parameters of all arrays in the order of the trainer's memory, with what `all` has of each.
  template <typename T, typename Visit>
  void each_part(const char* call, std::span<T> all, const Visit& visit) {
    if (static_cast<std::int64_t>(all.size()) != numel())
      throw UsageError(fmt::format("{}: {} values; the arrays have {} together", call, all.size(), numel()));
    std::size_t at = 0;
    for (std::size_t index = 0; index < arrays.size(); ++index)
      for (const ParameterId parameter : parts[index]) {
        const auto count = static_cast<std::size_t>(part_numel(arrays[index]));
        visit(parameter, arrays[index].frozen ? StateKind::parameter : StateKind::master,
              all.subspan(at, count));
        at += count;
      }
  }

  std::int64_t numel() const {
    std::int64_t sum = 0;
    for (const ArraySpec& array : arrays) sum += array.numel;
    return sum;
  }

  std::vector<ArraySpec> arrays;
  Engine engine;
  IdVector<std::vector<Entry>> entries;         // by unit
  std::vector<std::vector<ParameterId>> parts;  // by array
  Table parameters, gradients;
  std::optional<UnitLease> lease;
};

ArrayEngine::ArrayEngine(Communicator world, std::vector<ArraySpec> arrays, EngineOptions options)
    : impl_(std::make_unique<Impl>(std::move(world), std::move(arrays), std::move(options))) {}
ArrayEngine::~ArrayEngine() = default;

Engine& ArrayEngine::engine() { return impl_->engine; }
std::span<const ArraySpec> ArrayEngine::arrays() const { return impl_->arrays; }
std::int64_t ArrayEngine::numel() const { return impl_->numel(); }

void ArrayEngine::bind(std::span<float*> parameters, std::span<float*> gradients) {
  for (const ArraySpec& array : impl_->arrays)
    if (array.dtype != DType::fp32)
      throw UsageError(
          fmt::format("bind: array '{}' is {}, and the tables are of float*; declare it fp32, or "
                      "bind tables of void*",
                      array.name, name_of(array.dtype)));
  impl_->bind(table_of(parameters), table_of(gradients));
}

void ArrayEngine::bind(std::span<void*> parameters, std::span<void*> gradients) {
  impl_->bind(table_of(parameters), table_of(gradients));
}

void ArrayEngine::enter(UnitId unit, Pass pass) {
  Impl& impl = *impl_;
  if (impl.parameters.count == 0)
    throw UsageError("enter: no tables are bound, so nobody would see the unit's arrays; call bind first");
  leave();
  impl.lease.emplace(impl.engine.use(unit, pass));
  const Layout& layout = impl.engine.layout();
  for (const Impl::Entry& entry : impl.entries[unit]) {
    if (pass != Pass::weight_gradient)
      impl.parameters.set(entry.array, Impl::base_of(entry, impl.lease->parameter(entry.parameter)));
    if (impl.lease->writes_gradients() && layout.parameter(entry.parameter).trainable)
      impl.gradients.set(entry.array, Impl::base_of(entry, impl.lease->gradient(entry.parameter)));
  }
}

void ArrayEngine::leave() {
  if (!impl_->lease) return;
  impl_->clear();
  UnitLease ending = std::move(*impl_->lease);
  impl_->lease.reset();
  ending.end();
}

void ArrayEngine::write(std::span<const float> all) {
  impl_->each_part("write", all, [&](ParameterId parameter, StateKind state, std::span<const float> values) {
    impl_->engine.write(parameter, state, 0, values);
  });
}

void ArrayEngine::read(std::span<float> all) {
  impl_->each_part("read", all, [&](ParameterId parameter, StateKind state, std::span<float> values) {
    impl_->engine.read(parameter, state, 0, values);
  });
}

StepResult ArrayEngine::step(const StepInputs& inputs) {
  leave();
  return impl_->engine.step(inputs);
}

StepResult ArrayEngine::step_mean(double learning_rate, double loss) {
  leave();
  const int own = impl_->engine.running().own_microbatches();
  const bool counts = impl_->has_last_unit();
  return impl_->engine.step({.learning_rate = learning_rate,
                             .weight = counts ? static_cast<double>(own) : 0.0,
                             .loss = counts ? loss : 0.0});
}

StepResult ArrayEngine::abandon() {
  leave();
  return impl_->engine.abandon();
}

void ArrayEngine::end_evaluation() {
  leave();
  impl_->engine.end_evaluation();
}

}  // namespace tessera
