// Whether the kernel killed a process because memory was short: it counts such kills for each control group,
// and for the whole system, but tells nobody whom it killed.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>

namespace tessera::launching {

class MemoryKills {
 public:
  MemoryKills();  // counts from now on
  // Says why a process was killed that SIGKILL ended and nobody has waited for yet: "by the kernel for want
  // of memory" where its control group has counted a kill, a guess that says so where only the system has;
  // otherwise empty.
  std::string reason(pid_t process) const;

 private:
  std::int64_t group_before_, system_before_;
  std::string group_;  // the file that counts for this process
};

}  // namespace tessera::launching
