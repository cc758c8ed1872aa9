// Libraries that are loaded when they are first used, so that a program that never does needs none of them.
#pragma once

#include <string>
#include <string_view>

namespace tessera::device {

struct LibraryFile {
  std::string name;          // as the loader looks for it
  const char* built_at;      // where it was when this was built: tried if the loader finds none
  std::string_view needing;  // "collectives between GPUs need", for messages
  std::string_view way_out;  // what to do where there is none
};
// What dlopen() gave; it stays for good. EnvironmentError with the loader's reason where it cannot be loaded.
void* open_library(const LibraryFile& file);

// EnvironmentError where the library, called `title` in messages, has no such function.
void* find_function(void* library, std::string_view title, const char* name);

}  // namespace tessera::device
