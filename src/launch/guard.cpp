#include "src/launch/guard.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <thread>

#include "src/launch/processes.h"
#include "tessera/error.h"

namespace tessera::launching {
namespace {

// Kills until none is found twice: one that was being started may not have had its environment yet.
void kill_all(const std::vector<std::string>& marks) {
  constexpr std::chrono::milliseconds kPause{20};
  constexpr int kTries = 250;
  int clean = 0;
  for (int attempt = 0; attempt < kTries && clean < 2; ++attempt) {
    const std::vector<pid_t> left = processes_with(marks);
    for (const pid_t process : left) ::kill(process, SIGKILL);
    clean = left.empty() ? clean + 1 : 0;
    std::this_thread::sleep_for(kPause);
  }
}

[[noreturn]] void keep_guard(int line, const std::vector<std::string>& marks) {
  ::setsid();  // what ends the launcher's group or terminal does not end this
  sigset_t all;
  sigfillset(&all);
  ::sigprocmask(SIG_SETMASK, &all, nullptr);
  // It holds open nothing of the launcher's: who reads the launcher's output waits for its end.
  const int nowhere = ::open("/dev/null", O_RDWR);
  for (const int stream : {0, 1, 2}) ::dup2(nowhere, stream);
  if (line != 3) ::dup2(line, 3);
  ::close_range(4, ~0U, 0);
  char word = 0;
  ssize_t bytes = 0;
  do {
    bytes = ::read(3, &word, 1);
  } while (bytes < 0 && errno == EINTR);
  if (bytes <= 0) kill_all(marks);
  ::_exit(0);
}

}  // namespace

Guard::Guard(const std::vector<std::string>& marks) {
  std::array<int, 2> line{};
  if (::pipe2(line.data(), O_CLOEXEC) != 0)
    throw EnvironmentError(fmt::format("cannot make a pipe: {}", std::strerror(errno)));
  process_ = ::fork();
  if (process_ == 0) {
    ::close(line[1]);
    keep_guard(line[0], marks);
  }
  const int error = errno;
  ::close(line[0]);
  line_ = line[1];
  if (process_ < 0) {
    ::close(line_);
    throw EnvironmentError(fmt::format("cannot start a process: {}", std::strerror(error)));
  }
}

Guard::~Guard() {
  if (::write(line_, "d", 1) == 1) ::waitpid(process_, nullptr, 0);  // else somebody has ended it
  ::close(line_);
}

}  // namespace tessera::launching
