// Whole files mapped for reading, by name or pattern. Where they may shrink while they are mapped, or their
// disk may fail, ask can_read() first: what is not there ends the process (SIGBUS). Ask holds() afterwards:
// of the last page of a file that has shrunk what is not there reads as zeros.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace tessera {

// The file's bytes, without reading ahead of what is touched; the mapping lives as long as the pointer.
// Throws EnvironmentError, naming the path and the system's reason, for anything that is not a readable
// regular file. An empty file gives an empty span.
struct MappedFile {
  std::shared_ptr<const void> owner;
  std::span<const std::byte> bytes;
  std::string path;  // absolute
  std::uint64_t device = 0, inode = 0;
};
MappedFile map_file(const std::string& path);

// Asks the system to read this part of a mapped file from disk and does not wait. A hint: nothing fails.
void read_ahead(std::span<const std::byte> bytes);

// Brings this part of a mapped file into memory and waits for it: false where some of it cannot be had, as
// the file has become shorter or its disk fails. True without a look where the system is too old to tell
// (Linux before 5.14).
bool can_read(std::span<const std::byte> bytes);

// Whether the file still has this part of it. By its path, as a descriptor of each file would be more than a
// process may have open: of a file that has lost its name, or whose name another has, nothing is known, and
// true is answered. It is as it was mapped unless somebody still writes to it.
bool holds(const MappedFile& file, std::span<const std::byte> bytes);

// `path` itself where it exists or is no glob pattern; else the paths that it matches, in the order of their
// bytes, whatever the locale. Throws EnvironmentError where a pattern matches nothing or a folder on its way
// cannot be read.
std::vector<std::string> matching_files(const std::string& path);

}  // namespace tessera
