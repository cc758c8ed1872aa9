// The loop of one host's launcher: it starts the ranks when all hosts are there, waits for whatever happens
// first, and ends when nothing of the launch is left.
//
// A launch ends early for its first lost rank or host. First a moment passes in which the other ranks notice
// it themselves and say so; then they get SIGTERM; after the grace they are killed. Peers of a lost rank end
// with errors of their own, perhaps before the launcher is told of the cause: so an ending with a status is
// taken for the cause only when nothing better is heard of for a short while.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "src/launch/guard.h"
#include "src/launch/host_ranks.h"
#include "src/launch/outputs.h"
#include "src/launch/peers.h"
#include "src/launch/signal_wait.h"
#include "tessera/launcher.h"

namespace tessera::launching {

class Watch {
 public:
  Watch(const ProcessLaunch& launch, std::string file, Peers& peers);

  int run();  // the exit status of the launch

 private:
  enum class Phase : std::uint8_t {
    gathering,  // hosts are awaited
    running,
    noticing,  // something is lost, and the other ranks notice it
    ending,    // they were told to end, and have the grace
    killing,   // nobody is spared
    done,      // no process is left here
  };

  void wait();
  void take_signal(int number);
  void end_by_signal(int number);
  void suspend();
  void take(const News& news);
  void start(const Begin& begin);
  void gone(int rank, pid_t process, const Ending& ending);
  void lose(const Loss& loss);  // perhaps the cause of the end
  void settle();
  void decide(const Loss& loss);
  void move_on();
  void kill();
  void enter(Phase phase, std::chrono::milliseconds stay);

  const ProcessLaunch launch_;
  const std::string file_;
  Peers& peers_;
  const SignalWait signals_;
  std::optional<Outputs> outputs_;
  std::unique_ptr<Guard> guard_;
  HostRanks ranks_;  // destroyed before the guard is sent away
  Phase phase_ = Phase::gathering;
  std::optional<Clock::time_point> until_;  // of the phase
  std::vector<Loss> losses_;                // not decided yet
  Clock::time_point settled_at_{};
  bool decided_ = false, suspended_ = false;
  int lost_rank_ = -1;           // of this host
  Clock::time_point gone_by_{};  // when what does not end is given up
  int told_signal_ = 0;          // that ranks were told to end by
  Clock::time_point told_at_{};
  int status_ = 0;
};

}  // namespace tessera::launching
