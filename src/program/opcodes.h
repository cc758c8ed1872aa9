// What kinds of opcodes there are.
#pragma once

#include "tessera/program.h"

namespace tessera {

// What all ranks of a group must issue alike, on a channel.
constexpr bool is_collective(Opcode op) {
  return op == Opcode::all_gather || op == Opcode::reduce_scatter || op == Opcode::reduce_scalars;
}

// From one rank of a group to another.
constexpr bool is_message(Opcode op) { return op == Opcode::send || op == Opcode::receive; }

// What needs a channel.
constexpr bool communicates(Opcode op) { return is_collective(op) || is_message(op); }

// Of a copy between two spaces.
constexpr Lane lane_between(Space from, Space to) {
  if (from == Space::disk || to == Space::disk) return Lane::io;
  return to == Space::device ? Lane::upload : Lane::download;
}

// The lane on which the other rank of a message has its part; the lane itself where it is none of messages.
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

}  // namespace tessera
