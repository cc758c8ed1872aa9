#include "src/comm/nccl/library.h"

#include <dlfcn.h>

#include <string>

#include "src/device/shared_library.h"

namespace tessera::comm {
namespace {

Nccl load() {
  ask_for_launch_order();
  const std::string name = "libnccl.so." + std::to_string(NCCL_MAJOR);
  void* library = device::open_library({.name = name,
                                        .built_at = TESSERA_NCCL_FILE,
                                        .needing = "collectives between GPUs need",
                                        .way_out = "install NCCL or name its folder in LD_LIBRARY_PATH"});
  // Before what only later ones have is looked for.
  const auto get_version =
      reinterpret_cast<decltype(&ncclGetVersion)>(device::find_function(library, "NCCL", "ncclGetVersion"));
  int version = 0;
  get_version(&version);
  Dl_info from{};
  const bool known = dladdr(reinterpret_cast<void*>(get_version), &from) != 0 && from.dli_fname != nullptr;
  check_nccl_version(version, known ? from.dli_fname : name);
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
