#include "src/comm/control/link.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <future>
#include <thread>

#include "tessera/error.h"

namespace tessera::comm {
namespace {

using asio::ip::tcp;
using device::Patience;
using std::chrono::nanoseconds;

constexpr std::chrono::milliseconds kTryEach{20};
// Between two looks at how much time is left.
constexpr std::chrono::milliseconds kLookEach{50};

nanoseconds slice(Patience& patience) {
  return std::clamp<nanoseconds>(patience.left(), nanoseconds::zero(), kLookEach);
}

struct Places {
  std::vector<tcp::endpoint> found = {};
  asio::error_code error = {};
};

Places resolve(const std::string& address, int port) {
  Places places;
  asio::io_context io;
  for (const auto& entry : tcp::resolver(io).resolve(address, std::to_string(port), places.error))
    places.found.push_back(entry.endpoint());
  return places;
}

Places places_of(const std::string& address, int port, Patience& patience) {
  asio::error_code is_name;
  const asio::ip::address number = asio::ip::make_address(address, is_name);
  if (!is_name) return {.found = {tcp::endpoint(number, static_cast<unsigned short>(port))}};
  // The system takes the time it likes to find a name, and cannot be called off: nobody joins that thread.
  std::promise<Places> promise;
  std::future<Places> places = promise.get_future();
  std::thread([address, port, found = std::move(promise)]() mutable {
    found.set_value(resolve(address, port));
  }).detach();
  while (places.wait_for(slice(patience)) != std::future_status::ready)
    if (patience.over()) return {.error = asio::error::timed_out};
  return places.get();
}

}  // namespace

// ---- connecting ----

asio::error_code ControlLink::connect(const std::string& address, int port, Patience& patience) {
  for (;;) {
    const Places places = places_of(address, port, patience);
    asio::error_code error = places.error;
    auto left = std::ssize(places.found);
    for (const tcp::endpoint& place : places.found) {
      // One that drops the attempt leaves the others their share of the time.
      error = attempt(place, patience.left() / left--, patience);
      if (!error) return connected();
    }
    if (patience.left() <= kTryEach) return error;  // an attempt of no time would only meet its end
    std::this_thread::sleep_for(kTryEach);
  }
}

asio::error_code ControlLink::connected() {
  asio::error_code ignored;
  socket_.set_option(tcp::no_delay(true), ignored);
  descriptor_ = socket_.native_handle();
  const std::lock_guard lock(mutex_);
  broken_ = {};
  return {};
}

asio::error_code ControlLink::attempt(const tcp::endpoint& place, nanoseconds within, Patience& patience) {
  asio::error_code ignored, error;
  socket_.close(ignored);
  try {
    socket_.assign(place.protocol(), open_socket(place.protocol()));
    // Where this end has rank 0's port for a moment, see below, it does not keep rank 0 from it.
    socket_.set_option(tcp::socket::reuse_address(true));
  } catch (const std::system_error& met) {
    return met.code();
  }
  bool ended = false;
  socket_.async_connect(place, [&](const asio::error_code& met) {
    ended = true;
    error = met;
  });
  io_.restart();
  for (Patience share(within); !ended && !share.over() && !patience.over();)
    io_.run_for(std::min(slice(share), slice(patience)));
  io_.poll();  // what it has met by now
  if (!ended) {
    socket_.close(ignored);
    io_.run();  // the handler, which refers to this frame
    return asio::error::timed_out;
  }
  if (error || socket_.local_endpoint(ignored) != socket_.remote_endpoint(ignored)) return error;
  // Nobody listens there yet, and the system has chosen this end's port so that it met itself.
  socket_.set_option(tcp::socket::linger(true, 0), ignored);  // else the port would stay taken a while
  socket_.close(ignored);
  return asio::error::connection_refused;
}

// ---- reading and writing ----

bool ControlLink::await(short events, Patience& patience) const {
  if (patience.over()) return false;
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(slice(patience)).count();
  pollfd ready{.fd = descriptor_, .events = events, .revents = 0};
  ::poll(&ready, 1, static_cast<int>(left));
  return true;
}

Frame ControlLink::read_first(Patience& patience) const {
  static_assert(offsetof(FrameHeader, magic) == 0);
  Frame frame;
  FrameHeader& header = frame.header;
  const auto check = [](bool right) {
    if (!right) throw EnvironmentError("not a frame of this build of Tessera");
  };
  // Something else may have said all that it has to say with less than a header.
  constexpr std::size_t kStart = sizeof header.magic;
  pull(&header, kStart, patience);
  check(header.magic == FrameHeader::kMagic);
  pull(reinterpret_cast<char*>(&header) + kStart, sizeof header - kStart, patience);
  check(header.valid() && header.bytes <= kMostFirstBytes);
  frame.bytes.resize(static_cast<std::size_t>(frame.header.bytes));
  pull(frame.bytes.data(), frame.bytes.size(), patience);
  return frame;
}

void ControlLink::pull(void* into, std::size_t bytes, Patience& patience) const {
  for (std::size_t came = 0; came < bytes;) {
    const auto more = ::recv(descriptor_, static_cast<char*>(into) + came, bytes - came, MSG_DONTWAIT);
    const int error = errno;
    if (more > 0)
      came += static_cast<std::size_t>(more);
    else if (more == 0)
      throw asio::system_error(asio::error::eof);
    else if (error != EINTR && error != EAGAIN && error != EWOULDBLOCK)
      throw asio::system_error(asio::error_code(error, asio::error::get_system_category()));
    else if (!await(POLLIN, patience))
      throw asio::system_error(asio::error::timed_out);
  }
}

asio::error_code ControlLink::write(std::span<const char> frame, nanoseconds within) {
  Patience patience(within);
  {
    std::unique_lock lock(mutex_);
    while (!free_.wait_for(lock, slice(patience), [this] { return !writing_; }))
      if (patience.over()) return asio::error::timed_out;
    if (broken_) return broken_;
    writing_ = true;
  }
  std::span<const char> rest = frame;
  const asio::error_code error = push(rest, patience);
  const std::lock_guard lock(mutex_);
  writing_ = false;
  // What was not even begun may be followed by another frame.
  if (error && (rest.size() < frame.size() || error != asio::error::timed_out)) broken_ = error;
  free_.notify_all();
  return error;
}

// asio's own write would wait as long as the other end likes, whatever limit the socket has.
asio::error_code ControlLink::push(std::span<const char>& rest, Patience& patience) const {
  while (!rest.empty()) {
    const auto taken = ::send(descriptor_, rest.data(), rest.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    if (taken >= 0) {
      rest = rest.subspan(static_cast<std::size_t>(taken));
      continue;
    }
    if (errno == EINTR) continue;
    if (errno != EAGAIN && errno != EWOULDBLOCK) return {errno, asio::error::get_system_category()};
    if (!await(POLLOUT, patience)) return asio::error::timed_out;
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
