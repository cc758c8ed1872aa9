#include "src/launch/outputs.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <thread>
#include <utility>

#include "tessera/error.h"

namespace tessera::launching {
namespace {

void write_all(int to, const char* bytes, std::size_t count) {
  while (count > 0) {
    const ssize_t written = ::write(to, bytes, count);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return;  // nobody reads it any more, or the disk is full: the other copy goes on
    bytes += written;
    count -= static_cast<std::size_t>(written);
  }
}

// Copies what comes from[k] to the file and to stream k + 1, until both have ended.
[[noreturn]] void copy(std::array<int, 2> from, int file) {
  std::signal(SIGPIPE, SIG_IGN);
  std::array<pollfd, 2> waits = {{{from[0], POLLIN, 0}, {from[1], POLLIN, 0}}};
  std::array<char, 1 << 16> buffer{};
  while (waits[0].fd >= 0 || waits[1].fd >= 0) {
    if (::poll(waits.data(), waits.size(), -1) < 0) continue;
    for (std::size_t stream = 0; stream < waits.size(); ++stream) {
      if (waits[stream].fd < 0 || waits[stream].revents == 0) continue;
      const ssize_t bytes = ::read(waits[stream].fd, buffer.data(), buffer.size());
      if (bytes < 0 && errno == EINTR) continue;
      if (bytes <= 0) {
        waits[stream].fd = -1;
        continue;
      }
      write_all(file, buffer.data(), static_cast<std::size_t>(bytes));
      write_all(static_cast<int>(stream) + 1, buffer.data(), static_cast<std::size_t>(bytes));
    }
  }
  ::_exit(0);
}

[[noreturn]] void refuse(const std::string& what) {
  throw EnvironmentError(fmt::format("--output: cannot {}: {}", what, std::strerror(errno)));
}

}  // namespace

Outputs::Outputs(std::string folder) : folder_(std::move(folder)) {
  nothing_ = ::open("/dev/null", O_RDWR | O_CLOEXEC);
  if (nothing_ < 0) throw EnvironmentError(fmt::format("cannot open /dev/null: {}", std::strerror(errno)));
  if (folder_.empty()) return;
  std::error_code error;
  std::filesystem::create_directories(folder_, error);
  errno = error.value();
  if (error) refuse(fmt::format("make the folder '{}'", folder_));
}

Outputs::~Outputs() {
  constexpr std::chrono::milliseconds kPause{5};
  constexpr int kTries = 400;
  close_last();
  ::close(nothing_);
  for (int attempt = 0; copier_ > 0 && attempt < kTries; ++attempt) {
    if (::waitpid(copier_, nullptr, WNOHANG) != 0) return;
    std::this_thread::sleep_for(kPause);
  }
  if (copier_ > 0) {  // nobody reads the launcher's output
    ::kill(copier_, SIGKILL);
    ::waitpid(copier_, nullptr, 0);
  }
}

void Outputs::close_last() {
  for (const int descriptor : last_) ::close(descriptor);
  last_.clear();
}

int Outputs::open_file(const std::string& name) const {
  const std::string path = folder_ + "/" + name;
  const int file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0644);
  if (file < 0) refuse(fmt::format("write '{}'", path));
  return file;
}

Outputs::Streams Outputs::of(int rank) {
  close_last();
  Streams streams;
  if (rank != 0 || ::isatty(STDIN_FILENO) == 1) streams.in = nothing_;
  if (folder_.empty()) return streams;
  const int file = open_file(fmt::format("rank-{}.log", rank));
  last_.push_back(file);
  if (rank == 0) {
    const Streams to = copied(file);
    streams.out = to.out;
    streams.err = to.err;
  } else {
    streams.out = streams.err = file;
  }
  return streams;
}

Outputs::Streams Outputs::copied(int file) {
  std::array<int, 2> out{}, err{};
  if (::pipe2(out.data(), O_CLOEXEC) != 0 || ::pipe2(err.data(), O_CLOEXEC) != 0) refuse("make a pipe");
  copier_ = ::fork();
  if (copier_ < 0) refuse("start a process");
  if (copier_ == 0) {
    for (const int end : {out[1], err[1]}) ::close(end);
    // Only what it needs: who waits for the end of something else must not wait for this process.
    for (int descriptor = 3; descriptor < 1024; ++descriptor)
      if (descriptor != file && descriptor != out[0] && descriptor != err[0]) ::close(descriptor);
    copy({out[0], err[0]}, file);
  }
  for (const int end : {out[0], err[0]}) ::close(end);
  for (const int end : {out[1], err[1]}) last_.push_back(end);
  return {.out = out[1], .err = err[1]};
}

}  // namespace tessera::launching
