// A rank's arenas, one in each space, and where buffers lie in them. Follows which buffers are alive while a
// step runs: counts their bytes by space, hides the others where asked to, and looks at the guards of a plan
// that has them.
#pragma once

#include <atomic>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "src/device/disk.h"
#include "src/engine/guards.h"
#include "tessera/device.h"
#include "tessera/memory_plan.h"
#include "tessera/program.h"

namespace tessera {

class StepMemory {
 public:
  struct Options {
    bool poison = false;
    bool shared = false;                    // a device arena for Communicator::register_arena()
    ArenaSource source = {};                // of that arena
    std::int64_t address_space_before = 0;  // of that arena
    std::string disk_directory;             // of the file for Space::disk
  };
  // Nothing else may be called before take().
  StepMemory(Device& device, const IdVector<Program>& programs, const MemoryPlan& plan,
             const Options& options);
  // Takes the arenas of `plan`: memory from `device`, and a file where anything lies on the disk.
  void take();

  // During the buffer's lifetime of that number; 0 for a persistent one. Of one in memory.
  std::byte* address(int program, BufferId buffer, int lifetime) const {
    const Space space = programs_[program].buffers[buffer].space;
    return bases_[space] + plan_.offset(program, buffer, static_cast<std::size_t>(lifetime));
  }
  // In the file, of a buffer on the disk; these are persistent.
  std::int64_t disk_offset(int program, BufferId buffer) const { return plan_.offset(program, buffer); }
  Arena& arena() { return arenas_[Space::device]; }
  device::Disk& disk() { return *disk_; }
  const device::Disk* disk() const { return disk_.get(); }  // null where nothing lies on the disk
  const ByteCounters& counters(Space space) const { return *counters_[space]; }

  // Around every instruction of a step, where the tasks of its lane's stream run: a buffer is alive from
  // before the first instruction that touches it in a lifetime to after the last, on whichever lanes these
  // run. With poison nothing else may be touched.
  void begin_step(int program);
  void before(int program, InstructionId instruction, Stream& stream);
  void after(int program, InstructionId instruction, Stream& stream);

 private:
  // One lifetime of a buffer, with the accesses that are still to come in the running step.
  struct Tenancy {
    BufferId buffer = 0;
    std::int64_t offset = 0;
    InstructionId first = 0;  // to touch it
    int accesses = 0;
  };
  struct Watch {
    IdVector<Tenancy> tenancies;
    IdVector<std::vector<int>> begins;           // [instruction] tenancies that it is the first to touch
    IdVector<std::vector<int>> touches;          // [instruction] tenancies it touches
    IdVector<std::vector<BufferId>> persistent;  // [instruction] buffers that it touches; only for guards
    std::unique_ptr<std::atomic<int>[]> remaining;
  };
  Watch watch(int index, const Program& program) const;

  void begin(const Buffer& buffer, const Tenancy& tenancy, Stream& stream);
  void end(const Buffer& buffer, const Tenancy& tenancy);
  void hide(const Buffer& buffer, const Tenancy& tenancy);
  void guard_persistent();
  void check_guards(int program, InstructionId over, Stream& stream) const;

  Device& device_;
  const IdVector<Program>& programs_;
  const MemoryPlan& plan_;
  const Options options_;
  IdArray<ByteCounters, kSpaces> own_counters_;  // of all but the device
  IdArray<ByteCounters*, kSpaces> counters_;
  const bool poison_;
  const Guards guards_;
  IdArray<Arena, kSpaces> arenas_;  // the disk's is empty
  IdArray<std::byte*, kSpaces> bases_ = {};
  std::unique_ptr<device::Disk> disk_;
  IdVector<Watch> watches_;  // by program
};

}  // namespace tessera
