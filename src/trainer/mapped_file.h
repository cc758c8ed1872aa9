// A whole file mapped for reading. It must not shrink while it is mapped.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>

namespace tessera {

// The file's bytes; the mapping lives as long as the pointer. Throws EnvironmentError, naming the path and
// the system's reason, for anything that is not a readable regular file. An empty file gives an empty span.
struct MappedFile {
  std::shared_ptr<const void> owner;
  std::span<const std::byte> bytes;
};
MappedFile map_file(const std::string& path);

}  // namespace tessera
