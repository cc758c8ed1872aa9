// A rank's end of its control connection: whole frames go out, each within a time. One that was given up in
// the middle breaks the connection, so that nothing follows it. Knows nothing of calls.
#pragma once

#include <condition_variable>
#include <mutex>
#include <string>

#include "src/comm/control/wire.h"
#include "src/device/wait.h"

namespace tessera::comm {

class ControlLink {
 public:
  // Tries until there is a connection; what the last attempt met where there is none in time. May be called
  // again, for another one.
  asio::error_code connect(const std::string& address, int port, device::Patience& patience);
  // From any thread, one after another; timed_out where the other end has not taken it all in time. Once
  // broken, it returns at once what broke the connection.
  asio::error_code write(std::span<const char> frame, std::chrono::nanoseconds within);
  // The first frame of the other end, before any other read; throws as read_frame() does, and timed_out.
  Frame read_first(device::Patience& patience) const;
  // By one thread; blocks until a frame has come, or throws what asio throws: after shut(), too.
  Frame read() { return read_frame(socket_); }
  void shut() noexcept;
  void shut_if_broken() noexcept;

 private:
  asio::error_code attempt(const asio::ip::tcp::endpoint& place, std::chrono::nanoseconds within,
                           device::Patience& patience);
  asio::error_code connected();
  // Leaves in `rest` what was not taken.
  asio::error_code push(std::span<const char>& rest, device::Patience& patience) const;
  void pull(void* into, std::size_t bytes, device::Patience& patience) const;
  bool await(short events, device::Patience& patience) const;  // false: the time has passed

  asio::io_context io_;  // runs while it connects
  asio::ip::tcp::socket socket_{io_};
  int descriptor_ = -1;

  std::mutex mutex_;  // guards the rest
  std::condition_variable free_;
  bool writing_ = false;
  asio::error_code broken_;  // by this
};

}  // namespace tessera::comm
