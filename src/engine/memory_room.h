// Whether the hosts have memory for the arenas of all ranks, found before any of them takes some: what is
// mapped and not there ends a process without a word.
#pragma once

#include <cstdint>

#include "tessera/communicator.h"

namespace tessera {

// `bytes` of host memory of this rank, which is on `host`. Collective. EnvironmentError on the ranks of a
// host, or of a cgroup with a limit, that has not enough for all of them, with what is missing; what is free
// to swap to counts.
void check_memory_room(Communicator& ranks, const HostPlace& host, std::int64_t bytes);

}  // namespace tessera
