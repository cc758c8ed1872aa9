// Whole files mapped for reading, by name or pattern. If a file may shrink while it is mapped, or its disk
// may fail, call can_read() before reading: to read a missing page ends the process (SIGBUS). Call holds()
// after reading: in the last page of a file that has shrunk, missing bytes read as zeros.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace tessera {

// A mapped file. The mapping lives as long as `owner`. Only touched pages are read, without read-ahead.
// map_file() throws EnvironmentError, naming the path and the system's reason, for anything that is not a
// readable regular file. An empty file gives an empty span.
struct MappedFile {
  std::shared_ptr<const void> owner;
  std::span<const std::byte> bytes;
  std::string path;  // absolute
  std::uint64_t device = 0, inode = 0;
};
MappedFile map_file(const std::string& path);

// Asks the system to read this part of a mapped file from disk, and does not wait. This is a hint and cannot
// fail.
void read_ahead(std::span<const std::byte> bytes);

// Brings this part of a mapped file into memory and waits for it. False if some of it cannot be read, because
// the file has become shorter or its disk fails. On Linux before 5.14, which cannot tell, it returns true
// without a check.
bool can_read(std::span<const std::byte> bytes);

// Whether the file still has this part. The check goes by the file's path, because a descriptor for each file
// would be more than a process may have open. If the path no longer names this file, nothing is known and the
// result is true. The file is then as it was mapped, unless somebody still writes to it.
bool holds(const MappedFile& file, std::span<const std::byte> bytes);

// `path` itself if it exists or is not a glob pattern; else the paths that it matches, in the order of their
// bytes, for any locale. Throws EnvironmentError if a pattern matches nothing, or a folder on its way cannot
// be read.
std::vector<std::string> matching_files(const std::string& path);

}  // namespace tessera
