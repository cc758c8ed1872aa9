#include "src/comm/control/listener.h"

#include <fmt/format.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "src/comm/control/wire.h"
#include "tessera/error.h"

namespace tessera::comm {
namespace {

using asio::ip::tcp;

constexpr std::chrono::milliseconds kTryEach{100};

// A process has some files open besides.
constexpr int kOtherFiles = 100;

void check_files(int world) {
  rlimit files{};
  if (::getrlimit(RLIMIT_NOFILE, &files) != 0 || files.rlim_cur > static_cast<rlim_t>(world)) return;
  throw EnvironmentError(fmt::format(
      "rank 0 has a connection to each of {} ranks, and its process may open {} files: raise ulimit -n to {}",
      world, files.rlim_cur, world + kOtherFiles));
}

// What is over with the one connection that it befell; see accept(2).
bool is_of_a_connection(int error) {
  constexpr std::array kThese = {EAGAIN, EINTR,        ECONNABORTED, EPROTO,     EPERM,       ENETDOWN,
                                 ENONET, EHOSTUNREACH, EHOSTDOWN,    EOPNOTSUPP, ENETUNREACH, ENOPROTOOPT};
  return std::find(kThese.begin(), kThese.end(), error) != kThese.end();
}

}  // namespace

ControlListener::ControlListener(asio::io_context& io, int world, int port)
    : io_(io), acceptor_(io), timer_(io) {
  check_files(world);
  try {
    try {
      listen(tcp::v6(), world, port);
    } catch (const std::system_error& error) {
      if (error.code() == asio::error::address_in_use) throw;
      listen(tcp::v4(), world, port);  // the system has no IPv6
    }
  } catch (const std::system_error& error) {
    throw EnvironmentError(fmt::format(
        "rank 0 cannot listen on port {}: {}; MASTER_PORT must be free on its host", port, error.what()));
  }
}

void ControlListener::listen(const tcp& protocol, int world, int port) {
  protocol_ = protocol;
  close();
  acceptor_.assign(protocol, open_socket(protocol));
  if (protocol == tcp::v6()) acceptor_.set_option(asio::ip::v6_only(false));
  acceptor_.set_option(tcp::acceptor::reuse_address(true));
  acceptor_.bind(tcp::endpoint(protocol, static_cast<unsigned short>(port)));
  acceptor_.listen(world);
  acceptor_.non_blocking(true);  // a connection may be gone again
}

void ControlListener::close() noexcept {
  asio::error_code ignored;
  acceptor_.close(ignored);
}

void ControlListener::start(Handlers handlers) {
  handlers_ = std::move(handlers);
  wait();
}

void ControlListener::wait() {
  acceptor_.async_wait(tcp::acceptor::wait_read, [this](const asio::error_code&) {
    if (!acceptor_.is_open()) return;
    if (accept()) return wait();
    timer_.expires_after(kTryEach);
    timer_.async_wait([this](const asio::error_code&) {
      if (acceptor_.is_open()) wait();
    });
  });
}

bool ControlListener::accept() {
  // By itself, since asio's leaves the connection to every process that is started from here.
  const int connection = ::accept4(acceptor_.native_handle(), nullptr, nullptr, SOCK_CLOEXEC);
  if (connection >= 0) {
    tcp::socket socket(io_, protocol_, connection);
    asio::error_code ignored;
    socket.set_option(tcp::no_delay(true), ignored);
    handlers_.taken(std::move(socket));
    return true;
  }
  const int error = errno;
  if (is_of_a_connection(error)) return true;
  const bool no_files = error == EMFILE || error == ENFILE;
  handlers_.failed(fmt::format("it cannot accept connections: {}{}", std::strerror(error),
                               no_files ? "; raise ulimit -n" : ""));
  return false;
}

}  // namespace tessera::comm
