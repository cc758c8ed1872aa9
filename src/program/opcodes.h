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

// Whether it is run there: what an executor runs on a lane of its own choice must be ordered by that one.
constexpr bool runs_on(Opcode op, Lane lane) {
  switch (op) {
    case Opcode::use:
    case Opcode::accumulate:
    case Opcode::reduce_scalars:
      return lane == Lane::compute;
    case Opcode::all_gather:
      return lane == Lane::gather;
    case Opcode::reduce_scatter:
    case Opcode::square_sum:
      return lane == Lane::reduce;
    case Opcode::send:
      return lane == Lane::send_output || lane == Lane::send_gradient;
    case Opcode::receive:
      return lane == Lane::receive_output || lane == Lane::receive_gradient;
    case Opcode::update:
      return lane == Lane::compute || lane == Lane::host;
    case Opcode::copy:
      return lane == Lane::upload || lane == Lane::download || lane == Lane::io;
  }
  return false;
}

// Whether what communicates may be between the ranks along that axis.
constexpr bool goes_along(Opcode op, Axis axis) {
  if (op == Opcode::reduce_scalars) return axis == Axis::world;
  if (is_message(op)) return axis == Axis::pipeline;
  return axis == Axis::shard || axis == Axis::replicate;
}

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

constexpr bool is_of_messages(Lane lane) { return other_end(lane) != lane; }

// Of copies between spaces, and of what the host and the disk do.
constexpr bool is_of_moves(Lane lane) {
  return lane == Lane::upload || lane == Lane::download || lane == Lane::host || lane == Lane::io;
}

// Whether a rank without peers, which has nothing to hide behind its compute, runs it by the thread that
// computes.
constexpr bool joins_compute_alone(Lane lane) { return !is_of_moves(lane) && !is_of_messages(lane); }

}  // namespace tessera
