// What an instruction touches: which buffer, which part of it, of which type, and how. Plain data; what a
// role means for an opcode is in the table of src/program/opcodes.h.
#pragma once

#include <cstdint>
#include <string_view>

#include "tessera/dtype.h"
#include "tessera/spread.h"
#include "tessera/unit_spec.h"
#include "tessera/value_id.h"

namespace tessera {

using BufferId = int;       // index into Program::buffers
using InstructionId = int;  // position in Program::instructions, the order of issue

// What an operand is to its instruction.
enum class Role : std::uint8_t {
  // Operands of a use:
  parameters,       // a flat's parameters, whole
  gradient,         // one parameter's gradient; of an update: the reduced gradient
  batch,            // inputs and targets of the microbatch
  input,            // what the unit before handed on
  output,           // what this unit hands on
  output_gradient,  // the gradient of `output`, which the next unit wrote
  input_gradient,   // the gradient of the input
  value,            // one of the unit's own, see UnitGraph
  workspace,        // scratch
  // Operands of an instruction that moves, adds or zeroes:
  from,
  to,
  squares,  // what the squares of a gradient are added to
  // Operands of reduce_scalars:
  scalars,        // every rank's slot: this rank's goes to all, theirs come here
  decision,       // whether this step's updates run, and with which terms
  next_decision,  // the same for updates that the next step does
  // Operands of an update, besides the gradient:
  master,
  moment1,
  moment2,
  parameter  // the parameter in its own type, rounded from the master
};
inline constexpr int kRoles = 19;

// The role of an operand of a use that is this value.
constexpr Role role_of(ValueId value) {
  constexpr Role kShared[] = {Role::batch, Role::input, Role::output, Role::output_gradient,
                              Role::input_gradient};
  return value >= 0 ? Role::value : kShared[SharedValue::batch - value];
}

enum class Access : std::uint8_t {
  read,
  write,  // nothing of what was there remains in the region
  add,    // to what is there: a sum goes on
  modify  // in place: reads and writes
};

constexpr bool reads(Access access) { return access != Access::write; }
constexpr bool writes(Access access) { return access != Access::read; }

// The part of a buffer that is touched. Ranks that differ only in which shard they hold have equal regions.
struct Region {
  enum class Kind : std::uint8_t {
    all,        // the whole buffer, by bytes: an activation, the scalars, a decision
    part,       // this rank's part of a flat that is cut as `spread` says
    parameter,  // the elements of `parameter` in its flat
    gaps,       // the elements of a flat that belong to no parameter
    value,      // `value` of the instruction's unit, which the buffer holds
    sum         // this rank's sum of squares among the scalars: of all parameters, or of `parameter`
  };
  Kind kind = Kind::all;
  Spread spread = {};          // part
  ParameterId parameter = -1;  // for `parameter`; for `sum`, −1: of all
  ValueId value = kNoValue;    // for `value`
  // For a value that is a piece of another (ValueSpec::piece_of): only these bytes of the buffer. 0 and 0:
  // all.
  std::int64_t begin = 0, end = 0;
  bool operator==(const Region&) const = default;
  bool is_piece() const { return end > 0; }
  // The bytes that it has of a buffer of so many, where it is no region of a flat.
  std::int64_t bytes_of(std::int64_t buffer_bytes) const { return is_piece() ? end - begin : buffer_bytes; }
  // Whether it has some of these bytes of the buffer.
  bool meets(std::int64_t from, std::int64_t to) const { return !is_piece() || (from < end && begin < to); }

  static constexpr Region part_of(const Spread& spread) { return {.kind = Kind::part, .spread = spread}; }
  static constexpr Region of_parameter(ParameterId id) { return {.kind = Kind::parameter, .parameter = id}; }
  static constexpr Region between_parameters() { return {.kind = Kind::gaps}; }
  static constexpr Region of_value(ValueId id, std::int64_t begin = 0, std::int64_t end = 0) {
    return {.kind = Kind::value, .value = id, .begin = begin, .end = end};
  }
  static constexpr Region sum_of(ParameterId id) { return {.kind = Kind::sum, .parameter = id}; }
};

// Whether such a region is of elements of a flat.
constexpr bool is_of_flat(Region::Kind kind) {
  return kind == Region::Kind::part || kind == Region::Kind::parameter || kind == Region::Kind::gaps;
}

struct Operand {
  Role role = Role::from;
  BufferId buffer = -1;
  Region region = {};
  DType type = DType::fp32;  // the type of the elements, where the region belongs to a flat
  Access access = Access::read;
  bool operator==(const Operand&) const = default;
};

// The value that an operand of a use is, by its role; kNoValue where it is none.
constexpr ValueId value_of(const Operand& operand) {
  if (operand.role == Role::value) return operand.region.value;
  for (ValueId shared = SharedValue::batch; shared >= SharedValue::input_gradient; --shared)
    if (role_of(shared) == operand.role) return shared;
  return kNoValue;
}

std::string_view name_of(Role role);
std::string_view name_of(Access access);
std::string_view name_of(Region::Kind kind);

}  // namespace tessera
