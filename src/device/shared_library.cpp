#include "src/device/shared_library.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include "tessera/error.h"

namespace tessera::device {

void* open_library(const LibraryFile& file) {
  if (void* library = dlopen(file.name.c_str(), RTLD_NOW | RTLD_LOCAL)) return library;
  const std::string reason = dlerror();
  if (void* library = dlopen(file.built_at, RTLD_NOW | RTLD_LOCAL)) return library;
  throw EnvironmentError(fmt::format("{} {}: {}; {}", file.needing, file.name, reason, file.way_out));
}

void* find_function(void* library, std::string_view title, const char* name) {
  if (void* function = dlsym(library, name)) return function;
  throw EnvironmentError(fmt::format("{} has no {}; its version is not this build's", title, name));
}

}  // namespace tessera::device
