#include "src/launch/host_link.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

namespace tessera::launching {

HostLink::HostLink(int socket) : socket_(socket) {
  const int on = 1;
  ::setsockopt(socket_, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  ::fcntl(socket_, F_SETFL, ::fcntl(socket_, F_GETFL) | O_NONBLOCK);
}

HostLink& HostLink::operator=(HostLink&& other) noexcept {
  std::swap(socket_, other.socket_);
  std::swap(in_, other.in_);
  std::swap(out_, other.out_);
  std::swap(why_, other.why_);
  std::swap(heard_, other.heard_);
  std::swap(said_, other.said_);
  return *this;
}

void HostLink::close() noexcept {
  if (socket_ >= 0) ::close(socket_);
  socket_ = -1;
}

void HostLink::lose(const std::string& why) {
  why_ = why;
  close();
}

pollfd HostLink::wait() const {
  return {.fd = socket_, .events = static_cast<short>(POLLIN | (out_.empty() ? 0 : POLLOUT)), .revents = 0};
}

void HostLink::send(FrameKind kind, nlohmann::json body) {
  if (!is_open()) return;
  out_ += packed(Frame{kind, std::move(body)});
  said_ = Clock::now();
  flush();
}

void HostLink::flush() {
  while (is_open() && !out_.empty()) {
    const ssize_t sent = ::send(socket_, out_.data(), out_.size(), MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0) return;  // later, or receive() finds why not
    out_.erase(0, static_cast<std::size_t>(sent));
  }
}

void HostLink::end_sending() noexcept {
  if (is_open()) ::shutdown(socket_, SHUT_WR);
}

std::vector<Frame> HostLink::receive() {
  std::vector<Frame> frames;
  std::array<char, 4096> buffer{};
  while (is_open()) {
    const ssize_t bytes = ::recv(socket_, buffer.data(), buffer.size(), 0);
    if (bytes < 0 && errno == EINTR) continue;
    if (bytes < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) break;
    if (bytes < 0) {
      lose(std::strerror(errno));
    } else if (bytes == 0) {
      lose("its launcher ended");
    } else {
      heard_ = Clock::now();
      in_.append(buffer.data(), static_cast<std::size_t>(bytes));
      if (!unpack(in_, frames)) lose("what it sent is not of a launcher of Tessera");
    }
  }
  return frames;
}

void HostLink::close_if_silent(std::chrono::milliseconds limit) {
  if (is_open() && Clock::now() - heard_ > limit)
    lose(fmt::format("nothing was heard of it for {}", seconds_text(limit)));
}

void HostLink::beat(std::chrono::milliseconds every) {
  if (Clock::now() - said_ >= every) send(FrameKind::beat);
}

std::string HostLink::peer() const {
  sockaddr_storage address{};
  socklen_t length = sizeof address;
  std::array<char, NI_MAXHOST> name{};
  if (::getpeername(socket_, reinterpret_cast<sockaddr*>(&address), &length) != 0 ||
      ::getnameinfo(reinterpret_cast<sockaddr*>(&address), length, name.data(), name.size(), nullptr, 0,
                    NI_NUMERICHOST) != 0)
    return "an unknown address";
  const std::string text = name.data();
  return text.starts_with("::ffff:") ? text.substr(7) : text;
}

}  // namespace tessera::launching
