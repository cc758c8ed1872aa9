#include "src/comm/nccl_library.h"

#include <dlfcn.h>

#include <cstdlib>
#include <string>

#include "tessera/error.h"

namespace tessera::comm {
namespace {

// As the loader finds it, or else where it was when this was built.
void* open_library() {
  const std::string name = "libnccl.so." + std::to_string(NCCL_MAJOR);
  if (void* library = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL)) return library;
  const std::string reason = dlerror();
  if (void* library = dlopen(TESSERA_NCCL_FILE, RTLD_NOW | RTLD_LOCAL)) return library;
  throw EnvironmentError("collectives between GPUs need " + name + ": " + reason +
                         "; install NCCL or name its folder in LD_LIBRARY_PATH");
}

template <class Function>
void find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  if (function == nullptr)
    throw EnvironmentError(std::string("NCCL has no ") + name + "; its version is not this build's");
}

Nccl load() {
  // A rank's communicators work at the same time, and only this has NCCL start their kernels in one order on
  // all GPUs: that of the host. Read when NCCL is first used; the user's own setting stays.
  setenv("NCCL_LAUNCH_ORDER_IMPLICIT", "1", 0);
  void* library = open_library();
  Nccl functions{};
#define TESSERA_NCCL_FIND(function) find(library, #function, functions.function);
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
