// Whether the hosts have memory for the arenas of all ranks, found before any of them takes some: what is
// mapped and not there ends a process without a word.
#pragma once

#include <cstdint>
#include <string>

#include "tessera/communicator.h"
#include "tessera/engine_options.h"
#include "tessera/memory_plan.h"

namespace tessera {

// What a rank's arenas take of its host's memory.
struct HostMemory {
  std::int64_t bytes = 0;
  std::string directory = {};  // of the file on the disk; empty: nothing is there
  bool of_memory = false;      // whether the directory's file system keeps it in memory, where it counts, too
};
HostMemory host_memory_of(const EngineOptions& options, const MemoryPlan& plan);

// Of this rank, which is on `host`. Collective. EnvironmentError on the ranks of a host, or of a cgroup with
// a limit, that has not enough for all of them, with what is missing; what is free to swap to counts.
void check_memory_room(Communicator& ranks, const HostPlace& host, const HostMemory& memory);

}  // namespace tessera
