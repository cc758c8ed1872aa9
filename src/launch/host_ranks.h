// The processes of one host's ranks: starts them, signals them, sees how each ended or that it stands still,
// and sees to it that nothing of them stays. Who decides what a loss means is told by callbacks; nothing here
// knows of other hosts or of worlds, so that a membership that changes can drive it, too.
//
// All orphans that ranks leave become children of this process (PR_SET_CHILD_SUBREAPER), and so are found.
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <optional>
#include <set>

#include "src/launch/ending.h"
#include "src/launch/memory_kills.h"
#include "src/launch/rank_process.h"

namespace tessera::launching {

using Clock = std::chrono::steady_clock;

class HostRanks {
 public:
  struct Callbacks {
    // A rank's process has ended and was waited for: its number may be another's from now on.
    std::function<void(int rank, pid_t process, const Ending& ending)> gone;
    // A rank's process has been stopped for longer than the limit; told once.
    std::function<void(int rank, pid_t process, const Ending& ending)> stopped;
  };

  HostRanks(std::chrono::milliseconds stop_limit, Callbacks callbacks);
  // Kills what is left.
  ~HostRanks();
  HostRanks(const HostRanks&) = delete;
  HostRanks& operator=(const HostRanks&) = delete;

  // A child that is no rank and is neither killed nor told of, such as the guard.
  void add_helper(pid_t process) { helpers_.insert(process); }
  // Throws as start_process() does.
  pid_t start(int rank, const ProcessStart& start);
  // Signals the groups of all ranks that live.
  void signal(int number) const noexcept;
  void kill(int rank) const noexcept;
  // Takes note of children that have ended: after each SIGCHLD.
  void reap();
  // Looks for ranks that stand still: several times within the limit. After suspended(), time begins anew.
  void look();
  void forget_stops();
  bool all_gone() const { return ranks_.empty(); }
  // Kills what ended ranks have left. False: something is still there; reap and call it again.
  bool sweep();

 private:
  struct Rank {
    pid_t process = 0;
    std::optional<Clock::time_point> stopped_since = std::nullopt;
    bool told = false;
  };

  void ended(pid_t process, const Ending& ending);

  const std::chrono::milliseconds stop_limit_;
  const Callbacks callbacks_;
  const MemoryKills memory_kills_;
  std::map<int, Rank> ranks_;  // those that live, by number
  std::set<pid_t> helpers_;
  Clock::time_point looked_ = Clock::now();
};

}  // namespace tessera::launching
