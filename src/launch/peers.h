// The other hosts of a launch, as the loop of one host sees them (watch.h). On host 0 this is lead.h, which
// decides what is lost; on the others agent.h, which asks host 0.
#pragma once

#include <poll.h>

#include <optional>
#include <string>
#include <vector>

#include "src/launch/ending.h"
#include "src/launch/rank_environment.h"

namespace tessera::launching {

// What has come of the other hosts.
struct News {
  std::optional<Begin> begin{};     // all hosts are there: start the ranks
  std::vector<Loss> losses{};       // that other hosts have seen
  std::optional<Loss> decided{};    // what the launch ends for, by host 0's word
  std::vector<int> signals{};       // to the ranks here
  std::optional<bool> suspended{};  // or resumed
};

class Peers {
 public:
  virtual ~Peers() = default;
  // Whether losses are decided here; otherwise report() sends them.
  virtual bool decides() const = 0;
  virtual void add_waits(std::vector<pollfd>& waits) const = 0;
  // Takes what has come, sends what is due; several times within a heartbeat. EnvironmentError, before the
  // ranks have begun, where hosts do not meet.
  virtual News serve() = 0;
  virtual void report(const Loss& loss) = 0;
  virtual void decide(const Loss& loss) = 0;
  virtual void send_signal(int number) = 0;
  virtual void send_suspended(bool suspended) = 0;
  // No process is left here. `status` is this host's.
  virtual void done(int status) = 0;
  // Ends the launch where no process is left on any host. Every loss that was told of is decided.
  virtual void end_if_all_done() = 0;
  // Whether it has ended; then status() is that of the launch.
  virtual bool over() const = 0;
  virtual int status() const = 0;
};

}  // namespace tessera::launching
