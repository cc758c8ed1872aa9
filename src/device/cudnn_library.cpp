#include "src/device/cudnn_library.h"

#include <cudnn_version.h>
#include <dlfcn.h>
#include <fmt/format.h>

#include "tessera/device.h"
#include "tessera/error.h"

namespace tessera {
namespace {

std::string version_text(std::size_t version) {
  return fmt::format("{}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

struct Loaded {
  void* library = nullptr;
  std::size_t version = 0;
};

// As the loader finds it, or else where it was when this was built.
Loaded load() {
  const std::string name = fmt::format("libcudnn.so.{}", CUDNN_MAJOR);
  void* library = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
  const std::string reason = library == nullptr ? dlerror() : "";
  if (library == nullptr) library = dlopen(TESSERA_CUDNN_FILE, RTLD_NOW | RTLD_LOCAL);
  constexpr const char* kWayOut =
      "install it, name its folder in LD_LIBRARY_PATH, or build with -DTESSERA_WITH_CUDNN=OFF";
  if (library == nullptr)
    throw EnvironmentError(fmt::format("attention in bf16 on CUDA needs {}: {}; {}", name, reason, kWayOut));
  const auto get_version = reinterpret_cast<std::size_t (*)()>(dlsym(library, "cudnnGetVersion"));
  const std::size_t version = get_version == nullptr ? 0 : get_version();
  // Which shapes a plan exists for, and in how much memory, is known of this build's version and later ones.
  if (version < CUDNN_VERSION)
    throw EnvironmentError(fmt::format("{} is version {}, this build needs {} or later; {}", name,
                                       version_text(version), version_text(CUDNN_VERSION), kWayOut));
  return {library, version};
}

const Loaded& loaded() {
  static const Loaded one = load();
  return one;
}

}  // namespace

void* device::cudnn_library() { return loaded().library; }

CudnnLibrary read_cudnn_library() try {
  return {.version = version_text(loaded().version), .unusable = {}};
} catch (const EnvironmentError& error) {
  return {.version = {}, .unusable = error.what()};
}

}  // namespace tessera
