// Where ranks write: to the launcher's own standard streams, or each to a file. What rank 0 writes to its
// file a process of its own also writes to the launcher's streams, so that no slow reader keeps the launcher
// from watching.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

namespace tessera::launching {

class Outputs {
 public:
  struct Streams {
    int in = 0, out = 1, err = 2;
  };

  // Makes the folder; empty: there are no files. EnvironmentError where that fails.
  explicit Outputs(std::string folder);
  // Waits a moment until all that rank 0 wrote has been copied. Its process is gone.
  ~Outputs();
  Outputs(const Outputs&) = delete;
  Outputs& operator=(const Outputs&) = delete;

  // The streams of a rank that is started now; they are open until the next call. The launcher's standard
  // input is rank 0's, unless it is a terminal: only programs in the foreground may read that.
  Streams of(int rank);
  // The rank has these streams now, or will not.
  void close_last();
  // The process that copies; 0: there is none.
  pid_t copier() const { return copier_; }

 private:
  int open_file(const std::string& name) const;
  Streams copied(int file);  // starts the process that copies

  const std::string folder_;
  std::vector<int> last_;
  int nothing_ = -1;
  pid_t copier_ = 0;
};

}  // namespace tessera::launching
