#include "src/program/meetings.h"

#include "src/program/opcodes.h"

namespace tessera {
namespace {

template <typename Map>
std::span<const InstructionId> found(const Map& map, const typename Map::key_type& key) {
  const auto at = map.find(key);
  return at == map.end() ? std::span<const InstructionId>() : std::span<const InstructionId>(at->second);
}

}  // namespace

Meetings::Meetings(const Program& program) {
  for (InstructionId id = 0; id < program.instructions.count(); ++id) {
    const Instruction& instruction = program.instructions[id];
    if (is_message(instruction.op)) messages_[{instruction.lane, instruction.peer}].push_back(id);
    if (is_collective(instruction.op)) {
      const Channel& channel = program.channels.at(instruction.channel);
      collectives_[{channel.axis, channel.lane}].push_back(id);
    }
  }
}

std::span<const InstructionId> Meetings::collectives(Axis axis, Lane lane) const {
  return found(collectives_, {axis, lane});
}

std::span<const InstructionId> Meetings::messages(Lane lane, int peer) const {
  return found(messages_, {lane, peer});
}

}  // namespace tessera
