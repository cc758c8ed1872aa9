// What kinds of opcodes there are.
#pragma once

#include "tessera/program.h"

namespace tessera {

// What all ranks of a group must issue alike, on a channel.
constexpr bool is_collective(Opcode op) {
  return op == Opcode::all_gather || op == Opcode::reduce_scatter || op == Opcode::reduce_scalars;
}

}  // namespace tessera
