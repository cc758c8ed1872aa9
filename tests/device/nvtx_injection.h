// A profiler of the tests' own, linked into the program as NVTX's static injection: keeps what it is told.
#pragma once

#include <string>
#include <vector>

namespace tessera::nvtx_injection {

struct Seen {
  std::vector<std::string> domains, pushed;  // by name, in order
  int open = 0;                              // pushed and not popped, over all threads
};
// A copy; from any thread.
Seen seen();

}  // namespace tessera::nvtx_injection
