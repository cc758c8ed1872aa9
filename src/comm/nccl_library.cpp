#include "src/comm/nccl_library.h"

#include <cstdlib>
#include <string>

#include "src/device/shared_library.h"

namespace tessera::comm {
namespace {

Nccl load() {
  // A rank's communicators work at the same time, and only this has NCCL start their kernels in one order on
  // all GPUs: that of the host. Read when NCCL is first used; the user's own setting stays.
  setenv("NCCL_LAUNCH_ORDER_IMPLICIT", "1", 0);
  void* library = device::open_library({.name = "libnccl.so." + std::to_string(NCCL_MAJOR),
                                        .built_at = TESSERA_NCCL_FILE,
                                        .needing = "collectives between GPUs need",
                                        .way_out = "install NCCL or name its folder in LD_LIBRARY_PATH"});
  Nccl functions{};
#define TESSERA_NCCL_FIND(function) \
  functions.function =              \
      reinterpret_cast<decltype(functions.function)>(device::find_function(library, "NCCL", #function));
  TESSERA_FOR_EACH_NCCL(TESSERA_NCCL_FIND)
#undef TESSERA_NCCL_FIND
  return functions;
}

}  // namespace

const Nccl& nccl() {
  static const Nccl functions = load();
  return functions;
}

}  // namespace tessera::comm
