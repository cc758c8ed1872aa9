// Where the operands of a rank's instructions lie. The plan gives every address before the first step, so
// each is found once.
#pragma once

#include <cstddef>
#include <cstdint>

#include "src/engine/memory.h"
#include "tessera/layout.h"
#include "tessera/mesh.h"
#include "tessera/program.h"

namespace tessera {

struct OperandPlace {
  // The first element of `range`, or the buffer's where that is empty. Null on the disk.
  std::byte* address = nullptr;
  // The elements of its flat, on this rank. Empty where the region is not one run of a flat.
  ElementRange range;
  std::int64_t bytes = 0;
};

class OperandPlaces {
 public:
  // Finds the operands of `programs[index]`, which must outlive this, on the rank with these coordinates.
  OperandPlaces(const IdVector<Program>& programs, int index, const Layout& layout,
                const Coordinates& coordinates, const StepMemory& memory);

  // Says where an operand of this instruction lies. `operand` must be the program's own, no copy of it.
  const OperandPlace& of(InstructionId id, const Operand& operand) const {
    const std::ptrdiff_t k = &operand - program_.instructions[id].operands.data();
    return places_[first_[id] + k];
  }

 private:
  const Program& program_;
  IdVector<std::ptrdiff_t> first_;  // [instruction] the place of its first operand
  IdVector<OperandPlace> places_;
};

}  // namespace tessera
