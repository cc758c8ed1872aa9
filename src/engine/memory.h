// A rank's arena and the addresses of buffers in it. Follows which buffers are alive while a step runs:
// counts their bytes on the device, and hides the others where asked to.
#pragma once

#include <atomic>
#include <memory>
#include <span>
#include <vector>

#include "tessera/device.h"
#include "tessera/memory_plan.h"
#include "tessera/program.h"

namespace tessera {

class StepMemory {
 public:
  struct Options {
    bool poison = false;
    bool shared = false;  // an arena for Communicator::register_arena()
  };
  // Takes the device arena of `plan` from `device`.
  StepMemory(Device& device, const std::vector<Program>& programs, const MemoryPlan& plan,
             const Options& options);

  // During the buffer's lifetime of that number; 0 for a persistent one.
  std::byte* address(int program, BufferId buffer, int lifetime) const {
    return arena_.base() + plan_.offset(program, buffer, static_cast<std::size_t>(lifetime));
  }
  Arena& arena() { return arena_; }

  // Around every instruction of a step: a buffer is alive from before the instruction that begins its
  // lifetime to after the last that touches it, on whichever lanes these run. With poison nothing else may be
  // touched.
  void begin_step(int program);
  void before(int program, InstructionId instruction);
  void after(int program, InstructionId instruction);

 private:
  // One lifetime of a buffer, with the accesses that are still to come in the running step.
  struct Tenancy {
    std::int64_t offset = 0;
    std::int64_t bytes = 0;
    Category category = Category::parameters;
    int accesses = 0;
  };
  struct Watch {
    std::vector<Tenancy> tenancies;
    std::vector<std::vector<int>> begins;   // [instruction] tenancies that begin there
    std::vector<std::vector<int>> touches;  // [instruction] tenancies it touches
    std::unique_ptr<std::atomic<int>[]> remaining;
  };
  Watch watch(int index, const Program& program) const;

  void begin(const Tenancy& tenancy);
  void end(const Tenancy& tenancy);

  const MemoryPlan& plan_;
  ByteCounters& counters_;
  bool poison_ = false;
  Arena arena_;
  std::vector<Watch> watches_;  // by program
};

}  // namespace tessera
