// Where the operands of a rank's instructions lie. The plan gives every address before the first step, so
// each is found once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "src/engine/memory.h"
#include "tessera/layout.h"
#include "tessera/mesh.h"
#include "tessera/program.h"

namespace tessera {

struct OperandPlace {
  std::byte* address = nullptr;  // of its first element; null on the disk
  ElementRange range;            // of its flat, on this rank; empty where the region is all of a buffer
  std::int64_t bytes = 0;
};

class OperandPlaces {
 public:
  // Those of `programs[index]`, which must outlive this, on the rank with these coordinates.
  OperandPlaces(const IdVector<Program>& programs, int index, const Layout& layout,
                const Coordinates& coordinates, const StepMemory& memory);

  // Of an operand of this instruction, given by reference to the program's own.
  const OperandPlace& of(InstructionId id, const Operand& operand) const {
    const std::ptrdiff_t k = &operand - program_.instructions[id].operands.data();
    return places_[static_cast<std::size_t>(first_[id] + k)];
  }

 private:
  const Program& program_;
  IdVector<std::ptrdiff_t> first_;  // [instruction] the place of its first operand
  std::vector<OperandPlace> places_;
};

}  // namespace tessera
