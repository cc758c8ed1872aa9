// A rank's end of its control connection: whole frames go out, each within a time. One that was given up in
// the middle breaks the connection, so that nothing follows it. Knows nothing of calls.
#pragma once

#include <condition_variable>
#include <mutex>
#include <string>

#include "src/comm/control_wire.h"

namespace tessera::comm {

class ControlLink {
 public:
  using Clock = device::Clock;

  // Tries until there is a connection; what the last attempt met where there is none by `limit`.
  asio::error_code connect(const std::string& address, int port, Clock::time_point limit);
  // From any thread, one after another; timed_out where the other end has not taken it all by `limit`. Once
  // broken, it returns at once what broke the connection.
  asio::error_code write(std::span<const char> frame, Clock::time_point limit);
  // By one thread; blocks until a frame has come, or throws what asio throws: after shut(), too.
  Frame read() { return read_frame(socket_); }
  void shut() noexcept;
  void shut_if_broken() noexcept;

 private:
  asio::error_code attempt(const asio::ip::tcp::endpoint& place, std::chrono::nanoseconds within);
  // Leaves in `rest` what was not taken.
  asio::error_code push(std::span<const char>& rest, Clock::time_point limit) const;

  asio::io_context io_;  // runs while it connects
  asio::ip::tcp::socket socket_{io_};
  int descriptor_ = -1;

  std::mutex mutex_;  // guards the rest
  std::condition_variable free_;
  bool writing_ = false;
  asio::error_code broken_;  // by this
};

}  // namespace tessera::comm
