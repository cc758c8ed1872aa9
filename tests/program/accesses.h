// Operands from lists of buffers, for tests that look at accesses and at nothing else.
#pragma once

#include <algorithm>
#include <vector>

#include "tessera/program.h"

namespace tessera::testing {

// In roles that a use may have as many of as it likes; what is in both lists is added to.
inline std::vector<Operand> accesses(const std::vector<BufferId>& reads,
                                     const std::vector<BufferId>& writes) {
  const auto in = [](const std::vector<BufferId>& list, BufferId id) {
    return std::ranges::find(list, id) != list.end();
  };
  std::vector<Operand> operands;
  for (const BufferId id : reads)
    if (!in(writes, id)) operands.push_back({.role = Role::parameters, .buffer = id, .access = Access::read});
  for (const BufferId id : writes)
    operands.push_back(
        {.role = Role::gradient, .buffer = id, .access = in(reads, id) ? Access::add : Access::write});
  return operands;
}

inline void erase_role(Instruction& instruction, Role role) {
  std::erase_if(instruction.operands, [&](const Operand& operand) { return operand.role == role; });
}

// The first operand of that role, to be changed; it must be there.
inline Operand& operand_of(Instruction& instruction, Role role) {
  return *std::ranges::find(instruction.operands, role, &Operand::role);
}

}  // namespace tessera::testing
