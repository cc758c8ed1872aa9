#include "src/launch/signal_wait.h"

#include <fmt/format.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "tessera/error.h"

namespace tessera::launching {
namespace {

bool is_ignored(int number) {
  struct sigaction action {};
  return ::sigaction(number, nullptr, &action) == 0 && action.sa_handler == SIG_IGN;
}

}  // namespace

SignalWait::SignalWait() {
  sigset_t signals;
  sigemptyset(&signals);
  for (const int number : {SIGCHLD, SIGTSTP, SIGCONT}) sigaddset(&signals, number);
  for (const int number : {SIGINT, SIGTERM, SIGHUP})
    if (!is_ignored(number)) sigaddset(&signals, number);
  std::signal(SIGPIPE, SIG_IGN);
  // Children of an ignored SIGCHLD would be gone before anybody could ask how they ended.
  std::signal(SIGCHLD, SIG_DFL);
  descriptor_ = ::signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK);
  if (descriptor_ < 0)
    throw EnvironmentError(fmt::format("cannot wait for signals: {}", std::strerror(errno)));
  ::sigprocmask(SIG_BLOCK, &signals, &before_);
}

SignalWait::~SignalWait() {
  ::close(descriptor_);
  ::sigprocmask(SIG_SETMASK, &before_, nullptr);
}

std::optional<int> SignalWait::next() const {
  signalfd_siginfo info{};
  if (::read(descriptor_, &info, sizeof info) != static_cast<ssize_t>(sizeof info)) return std::nullopt;
  return static_cast<int>(info.ssi_signo);
}

}  // namespace tessera::launching
