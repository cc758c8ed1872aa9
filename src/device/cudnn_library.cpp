#include "src/device/cudnn_library.h"

#include <cudnn_version.h>
#include <dlfcn.h>
#include <fmt/format.h>

#include "src/device/shared_library.h"
#include "tessera/error.h"
#include "tessera/machine.h"

namespace tessera {
namespace {

std::string version_text(std::size_t version) {
  return fmt::format("{}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

struct Loaded {
  void* library = nullptr;
  std::size_t version = 0;
};

Loaded load() {
  const std::string name = fmt::format("libcudnn.so.{}", CUDNN_MAJOR);
  constexpr const char* kWayOut =
      "install it, name its folder in LD_LIBRARY_PATH, or build with -DTESSERA_WITH_CUDNN=OFF";
  void* library = device::open_library({.name = name,
                                        .built_at = TESSERA_CUDNN_FILE,
                                        .needing = "attention in bf16 on CUDA needs",
                                        .way_out = kWayOut});
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
