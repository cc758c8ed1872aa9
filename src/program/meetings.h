// What of a program meets instructions of other ranks: collectives by channel, messages by lane and peer.
#pragma once

#include <map>
#include <span>
#include <utility>
#include <vector>

#include "tessera/program.h"

namespace tessera {

class Meetings {
 public:
  explicit Meetings(const Program& program);

  // In order of issue; empty where there are none.
  std::span<const InstructionId> collectives(Axis axis, Lane lane) const;
  std::span<const InstructionId> messages(Lane lane, int peer) const;

 private:
  std::map<std::pair<Axis, Lane>, std::vector<InstructionId>> collectives_;
  std::map<std::pair<Lane, int>, std::vector<InstructionId>> messages_;
};

}  // namespace tessera
