// One call of a group's member, as its peers compare it with theirs and as errors name it.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "src/comm/backend.h"

namespace tessera::comm {

// What must be equal on all members, and names a call in errors.
struct Call {
  Operation operation = Operation::barrier;
  DType type = DType::fp32;
  int root = -1;              // of broadcast
  Contributors contributors;  // of reduce_scatter; all where all members contribute, and elsewhere
  bool balanced = false;      // of reduce_scatter
  std::int64_t count = 0;     // bytes, or elements where the operation has a type
  const char* shown = "";
  std::array<char, 64> unit{};

  static Call make(Operation operation, std::int64_t count, CallLabel label);
  // A reduce_scatter, native or not, of a group of so many members.
  static Call reduce_scatter(const ReduceScatter& request, int members, CallLabel label);
  bool matches(const Call& other) const;
  std::string text(std::uint64_t sequence) const;       // "all_gather #12 of unit 'block.3'"
  std::string full_text(std::uint64_t sequence) const;  // and what it moves
};

}  // namespace tessera::comm
