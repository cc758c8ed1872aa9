// The table of opcodes: the only place that says what each is, where it runs, what it touches and what it
// costs. The verifier's checks, the simulator's costs, the meetings of ranks and names read it.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "tessera/program.h"

namespace tessera {

enum class OpKind : std::uint8_t {
  module,      // the trainer's own compute, between Engine::use and the lease's end
  collective,  // what all ranks of a group must issue alike, on a channel
  message,     // from one rank of a group to another, on a channel
  local        // on this rank alone
};

// How the simulator computes an instruction's time, unless a duration is given.
enum class CostRule : std::uint8_t {
  flops,       // the operations of the module's pass
  collective,  // bytes of the whole over the links of the group
  message,     // bytes over the link between two ranks
  memory,      // bytes of the operands that are of flats, once for each read and each write
  transfer,    // bytes over the link between two spaces
  nothing
};

// A set of lanes, and of accesses: bit k stands for the k-th.
using LaneSet = std::uint32_t;
using AccessSet = std::uint32_t;
constexpr LaneSet set_of(Lane lane) { return 1U << static_cast<unsigned>(lane); }
constexpr AccessSet set_of(Access access) { return 1U << static_cast<unsigned>(access); }
template <class First, class... More>
requires(sizeof...(More) > 0) constexpr std::uint32_t set_of(First first, More... more) {
  return (set_of(first) | ... | set_of(more));
}

// A role that an opcode's operands may have.
struct RoleRow {
  enum class Count : std::uint8_t { one, optional, any };
  Role role;
  Count count;
  AccessSet accesses;
};

struct OpRow {
  Opcode op;
  std::string_view name;
  OpKind kind;
  LaneSet lanes;
  AxisSet axes;  // the axes along which it may communicate
  CostRule cost;
  std::span<const RoleRow> roles;

  bool runs_on(Lane lane) const { return (lanes & set_of(lane)) != 0; }
  // nullptr where operands of this opcode cannot have the role.
  const RoleRow* role(Role wanted) const;
};

const OpRow& row_of(Opcode op);

inline bool is_collective(Opcode op) { return row_of(op).kind == OpKind::collective; }
inline bool is_message(Opcode op) { return row_of(op).kind == OpKind::message; }
// What needs a channel.
inline bool communicates(Opcode op) { return is_collective(op) || is_message(op); }

// The lane of a copy between two spaces.
constexpr Lane lane_between(Space from, Space to) {
  if (from == Space::disk || to == Space::disk) return Lane::io;
  return to == Space::device ? Lane::upload : Lane::download;
}

// The lane on which the other rank of a message has its part; for lanes without messages the lane itself.
constexpr Lane other_end(Lane lane) {
  switch (lane) {
    case Lane::send_output:
      return Lane::receive_output;
    case Lane::receive_output:
      return Lane::send_output;
    case Lane::send_gradient:
      return Lane::receive_gradient;
    case Lane::receive_gradient:
      return Lane::send_gradient;
    default:
      return lane;
  }
}

constexpr bool is_of_messages(Lane lane) { return other_end(lane) != lane; }

// Whether the lane moves data between spaces, or is the host's or the disk's own.
constexpr bool is_of_moves(Lane lane) {
  return lane == Lane::upload || lane == Lane::download || lane == Lane::host || lane == Lane::io;
}

// Whether a rank without peers, which has nothing to hide behind its compute, runs the lane by the thread
// that computes.
constexpr bool joins_compute_alone(Lane lane) { return !is_of_moves(lane) && !is_of_messages(lane); }

}  // namespace tessera
