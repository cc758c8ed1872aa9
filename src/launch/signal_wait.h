// The signals that the launcher waits for in its loop, instead of being interrupted by them.
#pragma once

#include <csignal>
#include <optional>

namespace tessera::launching {

class SignalWait {
 public:
  // From now on SIGCHLD, SIGTSTP and SIGCONT come here, and of SIGINT, SIGTERM and SIGHUP those that are not
  // ignored: `nohup` and shells ignore some. SIGPIPE becomes an error of write().
  SignalWait();
  ~SignalWait();
  SignalWait(const SignalWait&) = delete;
  SignalWait& operator=(const SignalWait&) = delete;

  int descriptor() const { return descriptor_; }  // readable where one has come
  std::optional<int> next() const;
  const sigset_t& before() const { return before_; }  // what was blocked

 private:
  sigset_t before_{};
  int descriptor_ = -1;
};

}  // namespace tessera::launching
