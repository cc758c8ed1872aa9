#include "src/launch/rank_process.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "tessera/error.h"

namespace tessera::launching {
namespace {

std::vector<char*> pointers(const std::vector<std::string>& words) {
  std::vector<char*> result;
  result.reserve(words.size() + 1);
  for (const std::string& word : words) result.push_back(const_cast<char*>(word.c_str()));
  result.push_back(nullptr);
  return result;
}

// Runs in the new process, and does only what is safe behind fork().
[[noreturn]] void become(const ProcessStart& start, char** words, char** environment, pid_t launcher,
                         int report) {
  ::setpgid(0, 0);
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  // A launcher that ended before the line above sends nothing any more.
  if (::getppid() != launcher) ::_exit(127);
  const std::array streams = {start.in, start.out, start.err};
  for (int stream = 0; stream < 3; ++stream)
    if (streams[static_cast<std::size_t>(stream)] != stream)
      ::dup2(streams[static_cast<std::size_t>(stream)], stream);
  std::signal(SIGPIPE, SIG_DFL);
  // It is in the background of the terminal, to which it may write all the same.
  std::signal(SIGTTOU, SIG_IGN);
  ::sigprocmask(SIG_SETMASK, &start.signals, nullptr);
  ::execve(start.file.c_str(), words, environment);
  const int error = errno;
  if (::write(report, &error, sizeof error) < 0) ::_exit(126);
  ::_exit(127);
}

}  // namespace

pid_t start_process(const ProcessStart& start) {
  // Closed by the command's execution; until then it carries why there is none.
  std::array<int, 2> report{};
  if (::pipe2(report.data(), O_CLOEXEC) != 0)
    throw EnvironmentError(fmt::format("cannot make a pipe: {}", std::strerror(errno)));
  const std::vector<char*> words = pointers(start.words), environment = pointers(start.environment);
  const pid_t launcher = ::getpid(), process = ::fork();
  if (process == 0)
    become(start, const_cast<char**>(words.data()), const_cast<char**>(environment.data()), launcher,
           report[1]);
  const int fork_error = errno;
  ::close(report[1]);
  int error = 0;
  ssize_t bytes = 0;
  if (process > 0) do {
      bytes = ::read(report[0], &error, sizeof error);
    } while (bytes < 0 && errno == EINTR);
  ::close(report[0]);
  if (process < 0)
    throw EnvironmentError(fmt::format("cannot start a process: {}", std::strerror(fork_error)));
  if (bytes == 0) return process;
  ::waitpid(process, nullptr, 0);
  throw EnvironmentError(
      fmt::format("the command '{}' cannot be executed: {}{}", start.file, std::strerror(error),
                  error == ENOEXEC ? "; a script begins with a line such as #!/bin/sh" : ""));
}

void signal_group(pid_t leader, int number) noexcept { ::kill(-leader, number); }

}  // namespace tessera::launching
