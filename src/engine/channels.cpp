// The communicators of a rank's lanes: which there are, what they are bound to, and which is an
// instruction's.
#include <algorithm>

#include "src/comm/backend.h"
#include "src/engine/executor.h"
#include "src/program/opcodes.h"

namespace tessera {

// Collectives have a communicator per axis and lane. Messages have one per pair of ranks and direction, so
// that on each rank only the one lane that sends, or receives, ever uses it.
void Executor::open_channels(const Communicator& world, const Program& program) {
  for (const Instruction& instruction : program.instructions) {
    if (instruction.channel < 0) continue;
    const ChannelKey key = key_of(program, instruction);
    if (channels_.contains(key)) continue;
    // Both ends of a message name the sender's lane.
    const Lane named = instruction.op == Opcode::receive ? other_end(instruction.lane) : instruction.lane;
    channels_.emplace(key, world.subgroup(members_of(key), std::string(name_of(named))));
  }
}

// Collective over the members of each channel: in an order in which no two ranks wait for each other.
void Executor::bind_channels() {
  std::map<ChannelKey, MostReduced> most_reduced;
  for (const Program& program : programs_)
    for (const Instruction& instruction : program.instructions) {
      if (instruction.op != Opcode::reduce_scatter) continue;
      const Axis axis = axis_of(program, instruction);
      MostReduced& most = most_reduced[{axis, instruction.lane, instruction.peer}];
      const Operand& to = instruction.operand(Role::to);
      const Buffer& buffer = program.buffers[to.buffer];
      const std::int64_t numel = buffer.flat < 0 ? buffer.bytes / bytes_of(to.type)
                                                 : numel_of(layout_.flat(buffer.flat), to.region.spread);
      const DType wire = instruction.wire_type();
      if (options_.strategy.reduction == Reduction::exact)
        most.numel = std::max(most.numel, numel);
      else if (wire != DType::fp32 || to.access == Access::add)
        most.native_bytes = std::max(most.native_bytes, numel * bytes_of(wire));
    }
  std::map<std::tuple<Axis, std::vector<int>, std::string>, ChannelKey> in_order;
  for (auto& [key, channel] : channels_)
    in_order[{std::get<Axis>(key), members_of(key), channel.name()}] = key;
  for (const auto& [place, key] : in_order) {
    const auto& [axis, on, peer] = key;
    channels_.at(key).bind(lane(on), most_reduced[key]);
    if (peer < 0) continue;
    channels_.at(key).backend()->connect_pair();
    lane(on).synchronize();
  }
}

// Of a message: who sends, then who receives.
std::vector<int> Executor::members_of(const ChannelKey& key) const {
  const auto& [axis, lane, peer] = key;
  IdVector<int> ranks = options_.mesh.group(axis, rank_);
  if (peer < 0) return ranks;
  const int other = ranks[peer];
  const bool sends = lane == Lane::send_output || lane == Lane::send_gradient;
  return sends ? std::vector{rank_, other} : std::vector{other, rank_};
}

std::int64_t Executor::bytes_received(Axis axis) const {
  std::int64_t bytes = 0;
  for (const auto& [key, channel] : channels_)
    if (std::get<Axis>(key) == axis) bytes += channel.bytes_received();
  return bytes;
}

Axis Executor::axis_of(const Program& program, const Instruction& instruction) {
  return program.channels[instruction.channel].axis;
}

}  // namespace tessera
