// The twin of uring.cpp in a build without liburing.
#include "src/device/disk_queue.h"
#include "tessera/error.h"
#include "tessera/machine.h"

namespace tessera {

static const char* const kMissing = "this build has no liburing; configure with -DTESSERA_WITH_LIBURING=ON";

UringMachine read_uring_machine() { return {.built = false, .unusable = kMissing}; }

std::unique_ptr<device::DiskQueue> device::make_uring_queue(const DiskFile&, std::int64_t, int) {
  throw UnsupportedError(kMissing);
}

}  // namespace tessera
