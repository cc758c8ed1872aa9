// One end of the connection between two hosts' launchers: frames go out and come in without waiting, and the
// time when the other end was last heard of is known. What frames mean is its user's.
#pragma once

#include <poll.h>

#include <string>
#include <vector>

#include "src/launch/host_ranks.h"
#include "src/launch/wire.h"

namespace tessera::launching {

class HostLink {
 public:
  HostLink() = default;
  explicit HostLink(int socket);  // which it closes
  ~HostLink() { close(); }
  HostLink(HostLink&& other) noexcept { *this = std::move(other); }
  HostLink& operator=(HostLink&& other) noexcept;

  bool is_open() const { return socket_ >= 0; }
  void close() noexcept;
  pollfd wait() const;
  // Queues a frame behind those before, and sends as much as the system takes now.
  void send(FrameKind kind, nlohmann::json body = nlohmann::json::object());
  void flush();
  // Nothing is sent behind this. To close at once could take from the other end what was sent last, where
  // something of its own was not read yet: its end is waited for by receive().
  void end_sending() noexcept;
  // Returns what has come. Closes where the other end has ended, or is no launcher: why() says which.
  std::vector<Frame> receive();
  const std::string& why() const { return why_; }
  // Closes, for why() to say.
  void lose(const std::string& why);
  // Sends a beat where nothing was said for so long.
  void beat(std::chrono::milliseconds every);
  // Closes where nothing was heard for so long; why() says so.
  void close_if_silent(std::chrono::milliseconds limit);
  void forget_silence() { heard_ = Clock::now(); }
  std::string peer() const;  // the other end's address

 private:
  int socket_ = -1;
  std::string in_, out_, why_;
  Clock::time_point heard_ = Clock::now(), said_ = Clock::now();
};

}  // namespace tessera::launching
