#include "src/program/pieces.h"

#include <algorithm>

namespace tessera {

IdVector<std::vector<std::int64_t>> piece_cuts(const Program& program) {
  IdVector<std::vector<std::int64_t>> cuts(program.buffers.size());
  for (const Instruction& instruction : program.instructions)
    for (const Operand& operand : instruction.operands) {
      if (!operand.region.is_piece() || operand.buffer < 0 || operand.buffer >= cuts.count()) continue;
      for (const std::int64_t at : {operand.region.begin, operand.region.end})
        if (at > 0 && at < program.buffers[operand.buffer].bytes) cuts[operand.buffer].push_back(at);
    }
  for (std::vector<std::int64_t>& of_buffer : cuts) {
    std::ranges::sort(of_buffer);
    of_buffer.erase(std::unique(of_buffer.begin(), of_buffer.end()), of_buffer.end());
  }
  return cuts;
}

}  // namespace tessera
