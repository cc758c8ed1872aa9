#include "kernels/cuda/cublas_lt.h"

#include <dlfcn.h>

#include <string>

#include "tessera/error.h"

namespace tessera::kernels::cuda {
namespace {

// As the loader finds it, or else where it was when this was built.
void* open_library() {
  const std::string name = "libcublasLt.so." + std::to_string(CUBLAS_VER_MAJOR);
  if (void* library = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL)) return library;
  const std::string reason = dlerror();
  if (void* library = dlopen(TESSERA_CUBLAS_LT_FILE, RTLD_NOW | RTLD_LOCAL)) return library;
  throw EnvironmentError("matrix products on CUDA need " + name + ": " + reason +
                         "; install cuBLAS or name its folder in LD_LIBRARY_PATH");
}

template <class Function>
void find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  if (function == nullptr)
    throw EnvironmentError(std::string("cuBLASLt has no ") + name + "; its version is not this build's");
}

CublasLt load() {
  void* library = open_library();
  CublasLt functions{};
#define TESSERA_CUBLAS_LT_FIND(function) find(library, #function, functions.function);
  TESSERA_FOR_EACH_CUBLAS_LT(TESSERA_CUBLAS_LT_FIND)
#undef TESSERA_CUBLAS_LT_FIND
  return functions;
}

}  // namespace

const CublasLt& cublas_lt() {
  static const CublasLt functions = load();
  return functions;
}

}  // namespace tessera::kernels::cuda
