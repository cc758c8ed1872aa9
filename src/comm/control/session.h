// The hub's end of one control connection: whole frames come and go, in the hub's thread. What they mean, and
// whose they are, is the hub's.
#pragma once

#include <deque>
#include <functional>
#include <memory>

#include "src/comm/control/wire.h"

namespace tessera::comm {

class ControlSession : public std::enable_shared_from_this<ControlSession> {
 public:
  using Pointer = std::shared_ptr<ControlSession>;
  // Of several connections, perhaps.
  using Bytes = std::shared_ptr<const std::vector<char>>;

  struct Handlers {
    std::function<void(const Pointer&, Frame)> taken;
    std::function<void(const Pointer&, const char* why)> lost;
  };

  // The handlers outlive it.
  ControlSession(asio::ip::tcp::socket socket, const Handlers& handlers)
      : socket_(std::move(socket)), handlers_(handlers) {}

  // Takes one frame after another, until the connection is closed or has ended.
  void read();
  // Behind what was written before. That the connection has ended is found by reading.
  void write(FrameHeader header, Bytes bytes = nullptr);
  // The system has all that it will be given.
  bool written() const { return outgoing_.empty() || !is_open(); }
  bool is_open() const { return socket_.is_open(); }
  void close() noexcept;

  // What the hub notes of it.
  int rank = -1;          // before it is welcome
  bool stranger = false;  // it will not be: what it sends is not looked at

 private:
  struct Outgoing {
    FrameHeader header;
    Bytes bytes;
  };

  void read_behind();
  void write_next();

  asio::ip::tcp::socket socket_;
  const Handlers& handlers_;
  Frame incoming_;
  std::deque<Outgoing> outgoing_;
};

}  // namespace tessera::comm
