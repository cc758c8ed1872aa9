// The port that rank 0 listens on for control connections, by IPv6 and IPv4 where the system has both. What
// comes of a connection is its user's.
#pragma once

#include <asio.hpp>
#include <functional>
#include <string>

namespace tessera::comm {

class ControlListener {
 public:
  struct Handlers {
    std::function<void(asio::ip::tcp::socket)> taken;
    std::function<void(const std::string& why)> failed;  // it goes on trying behind that
  };

  // For connections of `world` ranks. EnvironmentError where the port cannot be listened on, or the process
  // may not open so many files.
  ControlListener(asio::io_context& io, int world, int port);
  // Takes one connection after another, until close(); runs in `io`.
  void start(Handlers handlers);
  void close() noexcept;

 private:
  void listen(const asio::ip::tcp& protocol, int world, int port);
  void wait();
  bool accept();  // false: it cannot for now

  asio::io_context& io_;
  asio::ip::tcp protocol_ = asio::ip::tcp::v6();
  asio::ip::tcp::acceptor acceptor_;
  asio::steady_timer timer_;
  Handlers handlers_;
};

}  // namespace tessera::comm
