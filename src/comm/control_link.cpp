#include "src/comm/control_link.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <thread>

namespace tessera::comm {
namespace {

using asio::ip::tcp;

constexpr std::chrono::milliseconds kTryEach{20};

}  // namespace

// ---- connecting ----

asio::error_code ControlLink::connect(const std::string& address, int port, Clock::time_point limit) {
  for (;;) {
    asio::error_code error;
    const auto places = tcp::resolver(io_).resolve(address, std::to_string(port), error);
    auto left = static_cast<std::int64_t>(places.size());
    for (const auto& place : places) {
      // One that drops the attempt leaves the others their share of the time.
      error = attempt(place.endpoint(), (limit - Clock::now()) / left--);
      if (!error) break;
    }
    if (!error) {
      socket_.set_option(tcp::no_delay(true), error);
      descriptor_ = socket_.native_handle();
      return {};
    }
    if (Clock::now() >= limit) return error;
    std::this_thread::sleep_for(kTryEach);
  }
}

asio::error_code ControlLink::attempt(const tcp::endpoint& place, std::chrono::nanoseconds within) {
  asio::error_code ignored;
  socket_.close(ignored);
  bool ended = false;
  asio::error_code error;
  socket_.async_connect(place, [&](const asio::error_code& met) {
    ended = true;
    error = met;
  });
  io_.restart();
  io_.run_for(within);
  if (ended) return error;
  socket_.close(ignored);
  io_.run();  // the handler, which refers to this frame
  return asio::error::timed_out;
}

// ---- writing ----

asio::error_code ControlLink::write(std::span<const char> frame, Clock::time_point limit) {
  {
    std::unique_lock lock(mutex_);
    if (!free_.wait_until(lock, limit, [this] { return !writing_; })) return asio::error::timed_out;
    if (broken_) return broken_;
    writing_ = true;
  }
  std::span<const char> rest = frame;
  const asio::error_code error = push(rest, limit);
  const std::lock_guard lock(mutex_);
  writing_ = false;
  // What was not even begun may be followed by another frame.
  if (error && (rest.size() < frame.size() || error != asio::error::timed_out)) broken_ = error;
  free_.notify_all();
  return error;
}

// asio's own write would wait as long as the other end likes, whatever limit the socket has.
asio::error_code ControlLink::push(std::span<const char>& rest, Clock::time_point limit) const {
  while (!rest.empty()) {
    const auto taken = ::send(descriptor_, rest.data(), rest.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    if (taken >= 0) {
      rest = rest.subspan(static_cast<std::size_t>(taken));
      continue;
    }
    if (errno == EINTR) continue;
    if (errno != EAGAIN && errno != EWOULDBLOCK) return {errno, asio::error::get_system_category()};
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(limit - Clock::now()).count();
    if (left <= 0) return asio::error::timed_out;
    pollfd room{.fd = descriptor_, .events = POLLOUT, .revents = 0};
    ::poll(&room, 1, static_cast<int>(std::min<std::int64_t>(left, 1000)));
  }
  return {};
}

void ControlLink::shut() noexcept {
  ::shutdown(descriptor_, SHUT_RDWR);  // closing it is not safe while another thread reads
}

void ControlLink::shut_if_broken() noexcept {
  const std::lock_guard lock(mutex_);
  if (broken_) shut();
}

}  // namespace tessera::comm
