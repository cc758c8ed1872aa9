// A process that outlives the launcher by a moment: where the launcher ends without a word, as SIGKILL ends
// it, the guard kills all that the ranks have started. The kernel kills the ranks themselves then.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

namespace tessera::launching {

class Guard {
 public:
  // It guards processes whose environment has all these "NAME=value". EnvironmentError where it cannot be
  // started.
  explicit Guard(const std::vector<std::string>& marks);
  // Sends it away: nothing is left to kill.
  ~Guard();
  Guard(const Guard&) = delete;
  Guard& operator=(const Guard&) = delete;

  pid_t process() const { return process_; }

 private:
  pid_t process_ = 0;
  int line_ = -1;  // whose end without a word is the launcher's
};

}  // namespace tessera::launching
