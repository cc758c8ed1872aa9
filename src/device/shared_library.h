// Loads libraries on first use, so that a program that never uses them does not need them.
#pragma once

#include <string>
#include <string_view>

namespace tessera::device {

struct LibraryFile {
  std::string name;          // the name that the loader looks for
  const char* built_at;      // the path at build time, tried if the loader finds none
  std::string_view needing;  // for messages: "collectives between GPUs need"
  std::string_view way_out;  // for messages: what to do if the library is missing
};
// The library as dlopen() returned it; it stays loaded. Throws EnvironmentError with the loader's reason if
// it cannot be loaded.
void* open_library(const LibraryFile& file);

// The address of a function. Throws EnvironmentError, which calls the library `title`, if it has no such
// function.
void* find_function(void* library, std::string_view title, const char* name);

}  // namespace tessera::device
