// Single ends of control connections, for tests of what the other end does.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <asio.hpp>
#include <atomic>
#include <fstream>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "src/comm/control/wire.h"
#include "tessera/communicator.h"
#include "tessera/error.h"

namespace tessera {

// A port that nobody listens on. Below those that the system gives away, so that no connection or listener of
// another test takes it before it is used; processes that run at the same time have others.
inline int free_port() {
  constexpr int kFirst = 10'000, kProcesses = 100, kEach = 100;
  static std::atomic<int> taken{0};
  asio::io_context io;
  for (int tries = 0; tries < kEach; ++tries) {
    const int port = kFirst + static_cast<int>(::getpid()) % kProcesses * kEach + taken++ % kEach;
    asio::ip::tcp::acceptor listener(io, asio::ip::tcp::v4());
    asio::error_code error;
    listener.set_option(asio::ip::tcp::acceptor::reuse_address(true), error);
    listener.bind({asio::ip::tcp::v4(), static_cast<unsigned short>(port)}, error);
    if (!error) listener.listen(1, error);
    if (!error) return port;
  }
  throw EnvironmentError("none of this process's ports for tests is free");
}

inline std::string error_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& error) {
    return error.what();
  }
  return "none";
}

inline comm::FrameHeader of_kind(comm::FrameKind kind) {
  comm::FrameHeader header;
  header.kind = kind;
  return header;
}

// Of this process.
inline std::int64_t resident_bytes() {
  std::ifstream file("/proc/self/statm");
  std::int64_t total = 0, resident = 0;
  file >> total >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}

// Where a rank should be: says what a test has it say.
class RawRank {
 public:
  // Connects as soon as somebody listens.
  explicit RawRank(int port) {
    asio::error_code error = asio::error::not_connected;
    while (error)
      socket_.connect({asio::ip::address_v4::loopback(), static_cast<unsigned short>(port)}, error);
  }
  void say(const comm::FrameHeader& header, std::span<const char> bytes = {}) {
    asio::write(socket_, asio::buffer(comm::packed(header, bytes)));
  }
  void say(const comm::Hello& hello) { asio::write(socket_, asio::buffer(hello.packed())); }
  comm::Frame hear() { return comm::read_frame(socket_); }
  // Once it is welcome.
  void join(int rank, int world) {
    say({.rank = rank, .world = world});
    EXPECT_EQ(hear().header.kind, comm::FrameKind::welcome);
  }

  asio::ip::tcp::socket& socket() { return socket_; }

 private:
  asio::io_context io_;
  asio::ip::tcp::socket socket_{io_};
};

// Where rank 0 should be: takes connections, and with each does what a test has it do. Keeps them open.
class FakeRankZero {
 public:
  using Serve = std::function<void(asio::ip::tcp::socket&)>;

  explicit FakeRankZero(Serve serve) : serve_(std::move(serve)) {
    accept();
    thread_ = std::thread([this] { io_.run(); });
  }
  ~FakeRankZero() {
    io_.stop();
    thread_.join();
  }
  FakeRankZero(const FakeRankZero&) = delete;
  FakeRankZero& operator=(const FakeRankZero&) = delete;

  int port() const { return acceptor_.local_endpoint().port(); }
  Communicator rank_one(std::chrono::milliseconds deadline) const {
    return make_control_world({.rank = 1, .world = 2, .port = port(), .deadline = deadline});
  }

  static void welcome(asio::ip::tcp::socket& socket) {
    comm::read_frame(socket);
    asio::write(socket, asio::buffer(comm::packed(of_kind(comm::FrameKind::welcome), {})));
  }

 private:
  void accept() {
    acceptor_.async_accept([this](const asio::error_code& error, asio::ip::tcp::socket socket) {
      if (error) return;
      sockets_.push_back(std::move(socket));
      try {
        serve_(sockets_.back());
      } catch (const std::system_error&) {  // the other end has gone
      }
      accept();
    });
  }

  const Serve serve_;
  asio::io_context io_;
  asio::ip::tcp::acceptor acceptor_{io_, {asio::ip::address_v4::loopback(), 0}};
  std::vector<asio::ip::tcp::socket> sockets_;
  std::thread thread_;
};

}  // namespace tessera
