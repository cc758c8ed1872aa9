// A use that others run inside is two instructions, and its lease lasts from the first to the second: the
// trainer may read, and in backward write, what either touches at any time between.
#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <string>
#include <tuple>
#include <vector>

#include "src/verify/checks.h"

namespace tessera {
namespace {

std::vector<BufferId> touched_by(const Instruction& instruction) {
  const std::vector<BufferId> reads = instruction.reads(), writes = instruction.writes();
  std::vector<BufferId> touched;
  std::ranges::set_union(reads, writes, std::back_inserter(touched));
  return touched;
}

class Leases {
 public:
  Leases(const Program& program, int index, Findings& findings)
      : program_(program), index_(index), findings_(findings) {}

  void run() {
    for (InstructionId id = 0; id < program_.instructions.count(); ++id) {
      const Instruction& use = at(program_, id);
      if (use.op == Opcode::use && use.edge == UseEdge::open) open_.push_back(id);
      if (use.op == Opcode::use && use.edge == UseEdge::close) close(id);
    }
    for (const InstructionId id : open_)
      report({id}, fmt::format("{} is not closed", describe(program_, id)));
  }

 private:
  void report(std::vector<InstructionId> instructions, std::string what) {
    findings_.add(Fault::malformed, index_, std::move(instructions), std::move(what));
  }

  void close(InstructionId id) {
    const auto key = [&](InstructionId of) {
      const Instruction& use = at(program_, of);
      return std::tuple(use.unit, use.part, use.pass, use.microbatch);
    };
    if (open_.empty() || key(open_.back()) != key(id))
      return report({id},
                    fmt::format("{} closes what is not the last that was opened", describe(program_, id)));
    check(open_.back(), id);
    open_.pop_back();
  }

  void check(InstructionId opening, InstructionId closing) {
    const std::vector<BufferId> first = touched_by(at(program_, opening)),
                                last = touched_by(at(program_, closing));
    for (const BufferId buffer : first)
      if (!std::ranges::binary_search(last, buffer))
        report({opening, closing},
               fmt::format("{} touches '{}', which {} does not", describe(program_, opening), name(buffer),
                           describe(program_, closing)));
    for (const BufferId buffer : last) check_alive(buffer, opening, closing);
    for (InstructionId id = opening + 1; id < closing; ++id) check_inside(id, last, opening);
  }

  void check_alive(BufferId id, InstructionId opening, InstructionId closing) {
    const Buffer& buffer = program_.buffers[id];
    const int life = lifetime_at(buffer, opening);
    if (life >= 0 && life == lifetime_at(buffer, closing)) return;
    findings_.add(Fault::outside_lifetime, index_, {opening, closing},
                  fmt::format("'{}' does not live from {} to {}", buffer.name, describe(program_, opening),
                              describe(program_, closing)));
  }

  // Uses inside it are the trainer's own calls, as what they write.
  void check_inside(InstructionId id, const std::vector<BufferId>& leased, InstructionId opening) {
    if (at(program_, id).op == Opcode::use) return;
    for (const BufferId buffer : at(program_, id).writes())
      if (std::ranges::binary_search(leased, buffer))
        findings_.add(Fault::unordered_access, index_, {opening, id},
                      fmt::format("{} writes '{}', which {} has leased", describe(program_, id), name(buffer),
                                  describe(program_, opening)));
  }

  const std::string& name(BufferId buffer) const { return program_.buffers[buffer].name; }

  const Program& program_;
  int index_;
  Findings& findings_;
  std::vector<InstructionId> open_;  // the last inside the one before
};

}  // namespace

void check_leases(const Program& program, int index, Findings& findings) {
  Leases(program, index, findings).run();
}

}  // namespace tessera
