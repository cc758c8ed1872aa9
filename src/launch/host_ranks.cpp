#include "src/launch/host_ranks.h"

#include <fmt/format.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <thread>
#include <utility>

#include "src/launch/processes.h"

namespace tessera::launching {

HostRanks::HostRanks(std::chrono::milliseconds stop_limit, Callbacks callbacks)
    : stop_limit_(stop_limit), callbacks_(std::move(callbacks)) {
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);
}

HostRanks::~HostRanks() {
  constexpr int kTries = 100;
  constexpr std::chrono::milliseconds kPause{10};
  signal(SIGKILL);
  for (const auto& [rank, one] : ranks_) ::waitpid(one.process, nullptr, 0);
  ranks_.clear();
  for (int attempt = 0; attempt < kTries && !sweep(); ++attempt) {
    std::this_thread::sleep_for(kPause);
    reap();
  }
  ::prctl(PR_SET_CHILD_SUBREAPER, 0);
}

pid_t HostRanks::start(int rank, const ProcessStart& start) {
  const pid_t process = start_process(start);
  ranks_[rank] = {.process = process};
  return process;
}

void HostRanks::signal(int number) const noexcept {
  for (const auto& [rank, one] : ranks_) signal_group(one.process, number);
}

void HostRanks::kill(int rank) const noexcept {
  const auto found = ranks_.find(rank);
  if (found != ranks_.end()) signal_group(found->second.process, SIGKILL);
}

void HostRanks::reap() {
  for (;;) {
    siginfo_t info{};
    // It stays a zombie while its control group is asked.
    if (::waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) != 0 || info.si_pid == 0) return;
    const pid_t process = info.si_pid;
    Ending ending;
    (info.si_code == CLD_EXITED ? ending.status : ending.signal) = info.si_status;
    if (ending.signal == SIGKILL) ending.for_want_of = memory_kills_.reason(process);
    ::waitpid(process, nullptr, 0);
    ended(process, ending);
  }
}

void HostRanks::ended(pid_t process, const Ending& ending) {
  helpers_.erase(process);
  const auto found =
      std::ranges::find_if(ranks_, [&](const auto& entry) { return entry.second.process == process; });
  if (found == ranks_.end()) return;
  const int rank = found->first;
  ranks_.erase(found);
  callbacks_.gone(rank, process, ending);
}

void HostRanks::forget_stops() {
  for (auto& [rank, one] : ranks_) one.stopped_since.reset();
  looked_ = Clock::now();
}

void HostRanks::look() {
  const Clock::time_point now = Clock::now();
  // This process did not run itself for a while, perhaps since it was stopped together with its ranks.
  if (now - looked_ > stop_limit_) forget_stops();
  looked_ = now;
  for (auto& [rank, one] : ranks_) {
    if (!is_stopped(one.process)) {
      one.stopped_since.reset();
      continue;
    }
    if (!one.stopped_since) one.stopped_since = now;
    if (one.told || now - *one.stopped_since < stop_limit_) continue;
    one.told = true;
    callbacks_.stopped(rank, one.process, {.signal = SIGSTOP, .stopped = true});
  }
}

bool HostRanks::sweep() {
  bool clean = ranks_.empty();
  for (const pid_t child : children()) {
    if (helpers_.contains(child)) continue;
    clean = false;
    ::kill(child, SIGKILL);
  }
  return clean;
}

}  // namespace tessera::launching
