// A file without a name that a process has open, as other processes of its host find it.
#pragma once

#include <cstdint>
#include <string>

namespace tessera::comm {

// Plain data for the other processes.
struct SharedDescriptor {
  int process = 0;
  int descriptor = -1;                  // in that process; -1: there is none
  std::uint64_t device = 0, inode = 0;  // of the file, to tell it from another process's of the same number

  // Describes one of this process; `descriptor` is -1 where the system does not tell what it is.
  static SharedDescriptor of(int descriptor);
  // The same file in this process, by open(2)'s `flags`; the caller closes it. EnvironmentError, calling the
  // file `what`, where the system refuses or there is another file.
  int open(int flags, const std::string& what) const;
};

}  // namespace tessera::comm
