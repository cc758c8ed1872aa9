// The side of a launch of every host but 0: it connects to host 0, starts its ranks on its word, tells it of
// losses, and ends when it says so or is not heard of any more.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>

#include "src/launch/host_link.h"
#include "src/launch/peers.h"
#include "tessera/launcher.h"

namespace tessera::launching {

class Agent final : public Peers {
 public:
  // EnvironmentError where host 0's address is no address and no known name.
  explicit Agent(const ProcessLaunch& launch);
  ~Agent() override;
  Agent(const Agent&) = delete;
  Agent& operator=(const Agent&) = delete;

  // Once host 0 is lost there is nobody else to ask.
  bool decides() const override { return host_0_lost_; }
  void add_waits(std::vector<pollfd>& waits) const override;
  News serve() override;
  void report(const Loss& loss) override { link_.send(FrameKind::lost, packed(loss)); }
  void decide(const Loss& loss) override { status_ = loss.status; }
  void send_signal(int number) override { link_.send(FrameKind::signal, {{"number", number}}); }
  void send_suspended(bool suspended) override;
  void done(int status) override;
  void end_if_all_done() override {}  // as host 0 says
  bool over() const override { return over_; }
  int status() const override { return status_; }

 private:
  struct Place {
    sockaddr_storage address{};
    socklen_t length = 0;
    int family = 0;
  };

  void find_places();
  // One step of connecting; true: there is a connection.
  bool connect();
  void try_next_place();
  [[noreturn]] void throw_not_met() const;
  void take(const Frame& frame, News& news);
  void look(News& news);

  const ProcessLaunch launch_;
  const Clock::time_point since_ = Clock::now();
  std::vector<Place> places_;
  std::size_t next_place_ = 0;
  int connecting_ = -1;
  Clock::time_point tried_{};
  std::string met_ = "nobody answers there";  // by the last attempt
  HostLink link_;
  bool begun_ = false, suspended_ = false, done_ = false, over_ = false, host_0_lost_ = false;
  int status_ = 0;
};

}  // namespace tessera::launching
