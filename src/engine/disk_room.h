// Whether the disks have room for what all ranks keep there, found before any of them takes some.
#pragma once

#include <cstdint>
#include <string>

#include "tessera/communicator.h"

namespace tessera {

// `bytes` of this rank, which is on `host`, in a directory, of which others may be on the same file system.
// Collective. EnvironmentError on the ranks of a host whose file system has not enough for all of them, with
// what is missing.
void check_disk_room(Communicator& ranks, const HostPlace& host, const std::string& directory,
                     std::int64_t bytes);

}  // namespace tessera
