#include "kernels/cuda/cublas_lt.h"

#include <string>

#include "src/device/shared_library.h"

namespace tessera::kernels::cuda {
namespace {

CublasLt load() {
  void* library = device::open_library({.name = "libcublasLt.so." + std::to_string(CUBLAS_VER_MAJOR),
                                        .built_at = TESSERA_CUBLAS_LT_FILE,
                                        .needing = "matrix products on CUDA need",
                                        .way_out = "install cuBLAS or name its folder in LD_LIBRARY_PATH"});
  CublasLt functions{};
#define TESSERA_CUBLAS_LT_FIND(function) \
  functions.function =                   \
      reinterpret_cast<decltype(functions.function)>(device::find_function(library, "cuBLASLt", #function));
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
