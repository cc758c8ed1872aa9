// Random small programs: sound ones (every lifetime begins with a write, every access lies in a lifetime),
// otherwise without sense. At most 64 instructions, so that a set of instructions is one word.
#pragma once

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "tessera/program.h"

namespace tessera::testing {

class RandomPrograms {
 public:
  explicit RandomPrograms(unsigned seed) : generator_(seed) {}

  // In [from, to].
  int pick(int from, int to) {
    return from + static_cast<int>(generator_() % static_cast<unsigned>(to - from + 1));
  }

  // Buffers are called prefix0, prefix1, …: two programs with one prefix share those of equal number, whose
  // bytes, space and keeping of addresses follow from the number and `salt`.
  Program make(const std::string& prefix, unsigned salt) {
    Program program;
    program.units = {{.name = "unit"}};
    program.instructions.resize(static_cast<std::size_t>(pick(4, 64)));
    const int lanes = pick(2, 5);
    for (Instruction& instruction : program.instructions) {
      instruction.lane = static_cast<Lane>(pick(0, lanes - 1));
      instruction.unit = 0;
    }
    for (int number = pick(3, 20); number > 0; --number) add_buffer(program, prefix, number, salt);
    return program;
  }

 private:
  void add_buffer(Program& program, const std::string& prefix, int number, unsigned salt) {
    std::mt19937 fixed(salt * 1000 + static_cast<unsigned>(number));
    Buffer buffer{.name = prefix + std::to_string(number),
                  .category = static_cast<Category>(fixed() % kCategories),
                  .space = fixed() % 4 == 0 ? Space::host : Space::device,
                  .bytes = fixed() % 10 == 0 ? 0 : static_cast<std::int64_t>(1 + fixed() % 3000),
                  .persistent = fixed() % 5 == 0,
                  .one_address = fixed() % 3 == 0,
                  .lifetimes = {}};
    const auto id = program.buffers.count();
    const int count = program.instructions.count();
    if (buffer.persistent) {
      touch(program, id, 0, count - 1, false);
    } else {
      int at = pick(0, count - 1);
      for (int lives = pick(0, 4); lives > 0 && at < count; --lives) {
        const Lifetime life{at, std::min(count - 1, at + pick(0, 12))};
        buffer.lifetimes.push_back(life);
        touch(program, id, life.first, pick(life.first, life.last), true);
        at = life.last + 1 + pick(0, 6);
      }
    }
    program.buffers.push_back(std::move(buffer));
  }

  void touch(Program& program, BufferId id, int first, int last, bool write_first) {
    for (int at = first; at <= last; ++at) {
      Instruction& instruction = program.instructions[at];
      const bool fresh = write_first && at == first;
      if (!fresh && pick(0, 2) != 0) continue;
      const int kind = fresh ? 2 : pick(0, 3);
      const Access access = kind < 2 ? Access::read : kind == 2 ? Access::write : Access::add;
      instruction.operands.push_back({.role = access == Access::read ? Role::parameters : Role::gradient,
                                      .buffer = id,
                                      .access = access});
    }
  }

  std::mt19937 generator_;
};

}  // namespace tessera::testing
