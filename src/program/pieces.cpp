#include "src/program/pieces.h"

#include <set>

namespace tessera {

IdVector<std::vector<Stretch>> stretches_of(const Program& program) {
  IdVector<std::set<std::int64_t>> cuts(program.buffers.size());
  for (const Instruction& instruction : program.instructions)
    for (const Operand& operand : instruction.operands)
      if (operand.region.is_piece() && operand.buffer >= 0 && operand.buffer < cuts.count())
        for (const std::int64_t at : {operand.region.begin, operand.region.end})
          if (at > 0 && at < program.buffers[operand.buffer].bytes) cuts[operand.buffer].insert(at);
  IdVector<std::vector<Stretch>> stretches(program.buffers.size());
  for (BufferId id = 0; id < program.buffers.count(); ++id) {
    std::int64_t begin = 0;
    for (const std::int64_t cut : cuts[id]) {
      stretches[id].push_back({begin, cut});
      begin = cut;
    }
    stretches[id].push_back({begin, program.buffers[id].bytes});
  }
  return stretches;
}

}  // namespace tessera
