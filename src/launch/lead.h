// Host 0's side of a launch: it listens, waits until all hosts are there, numbers their ranks, and passes on
// what one host says to all. Of a launch on one host it has nobody to wait for.
#pragma once

#include <list>

#include "src/launch/host_link.h"
#include "src/launch/peers.h"
#include "tessera/launcher.h"

namespace tessera::launching {

class Lead final : public Peers {
 public:
  // EnvironmentError where the port cannot be listened on.
  explicit Lead(const ProcessLaunch& launch);
  ~Lead() override;
  Lead(const Lead&) = delete;
  Lead& operator=(const Lead&) = delete;

  bool decides() const override { return true; }
  void add_waits(std::vector<pollfd>& waits) const override;
  News serve() override;
  void report(const Loss&) override {}
  void decide(const Loss& loss) override;
  void send_signal(int number) override;
  void send_suspended(bool suspended) override;
  void done(int status) override;
  void end_if_all_done() override;
  bool over() const override { return over_; }
  int status() const override { return status_; }

 private:
  struct Member {
    HostLink link;
    int host = -1;  // before it has said it
    int ranks = 0;
    bool done = false, refused = false;
  };

  void listen();
  void accept();
  void take(Member& member, const Frame& frame, News& news);
  void greet(Member& member, const Hello& hello);
  std::string objection(const Hello& hello) const;  // empty: it is welcome
  Member* member(int host);
  void look_at(Member& member, News& news);
  void begin_if_all_there(News& news);
  void check_start();
  void send(FrameKind kind, const nlohmann::json& body, const Member* but = nullptr);

  const ProcessLaunch launch_;
  const Clock::time_point since_ = Clock::now();
  int listener_ = -1;
  std::list<Member> members_;
  bool begun_ = false, suspended_ = false, done_ = false, over_ = false;
  int status_ = 0;
};

}  // namespace tessera::launching
