#include "src/launch/agent.h"

#include <fmt/format.h>
#include <netdb.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "tessera/error.h"

namespace tessera::launching {
namespace {

using nlohmann::json;

constexpr std::chrono::milliseconds kTryEach{100};
constexpr std::chrono::milliseconds kAttempt{2'000};

}  // namespace

Agent::Agent(const ProcessLaunch& launch) : launch_(launch) { find_places(); }

Agent::~Agent() {
  if (connecting_ >= 0) ::close(connecting_);
}

void Agent::find_places() {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int error =
      ::getaddrinfo(launch_.address.c_str(), std::to_string(launch_.port).c_str(), &hints, &found);
  if (error != 0)
    throw EnvironmentError(fmt::format("--at: '{}' is no address, and no name that this host knows: {}",
                                       launch_.address, ::gai_strerror(error)));
  for (const addrinfo* one = found; one != nullptr; one = one->ai_next) {
    Place place;
    std::memcpy(&place.address, one->ai_addr, one->ai_addrlen);
    place.length = one->ai_addrlen;
    place.family = one->ai_family;
    places_.push_back(place);
  }
  ::freeaddrinfo(found);
}

void Agent::add_waits(std::vector<pollfd>& waits) const {
  if (connecting_ >= 0) waits.push_back({.fd = connecting_, .events = POLLOUT, .revents = 0});
  if (link_.is_open()) waits.push_back(link_.wait());
}

void Agent::throw_not_met() const {
  throw EnvironmentError(
      fmt::format("host 0 was not met at {}:{} within {}: {}; it runs the same command with --host 0, and "
                  "--start gives it "
                  "longer",
                  launch_.address, launch_.port, seconds_text(launch_.start), met_));
}

void Agent::try_next_place() {
  const Place& place = places_[next_place_++ % places_.size()];
  tried_ = Clock::now();
  connecting_ = ::socket(place.family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (connecting_ < 0) return;
  if (::connect(connecting_, reinterpret_cast<const sockaddr*>(&place.address), place.length) == 0 ||
      errno == EINPROGRESS)
    return;
  met_ = std::strerror(errno);
  ::close(connecting_);
  connecting_ = -1;
}

bool Agent::connect() {
  const auto waited = Clock::now() - tried_;
  if (connecting_ < 0 && waited >= kTryEach) try_next_place();
  if (connecting_ < 0) return false;
  pollfd wait{.fd = connecting_, .events = POLLOUT, .revents = 0};
  if (::poll(&wait, 1, 0) == 0) {
    if (waited < kAttempt) return false;
    met_ = "no answer";
  } else {
    int error = 0;
    socklen_t length = sizeof error;
    ::getsockopt(connecting_, SOL_SOCKET, SO_ERROR, &error, &length);
    if (error == 0) {
      link_ = HostLink(std::exchange(connecting_, -1));
      return true;
    }
    met_ = std::strerror(error);
  }
  ::close(connecting_);
  connecting_ = -1;
  return false;
}

News Agent::serve() {
  News news;
  if (over_ || host_0_lost_) return news;
  if (!link_.is_open()) {
    if (Clock::now() - since_ > launch_.start) throw_not_met();
    if (!connect()) return news;
    const Hello hello{.host = launch_.host,
                      .hosts = launch_.hosts,
                      .ranks = launch_.ranks,
                      .heartbeat_ms = launch_.heartbeat.count(),
                      .id = launch_.id};
    link_.send(FrameKind::hello, hello.packed());
  }
  look(news);
  return news;
}

void Agent::look(News& news) {
  bool foreign = false;
  for (const Frame& frame : link_.receive()) try {
      take(frame, news);
    } catch (const json::exception&) {
      foreign = true;
    }
  if (over_) return;
  if (foreign) link_.lose(fmt::format("it {}", kForeign));
  link_.flush();
  if (!suspended_) {
    link_.beat(launch_.heartbeat / 4);
    link_.close_if_silent(launch_.heartbeat);
  }
  if (link_.is_open()) {
    if (!begun_ && Clock::now() - since_ > launch_.start)
      throw EnvironmentError(fmt::format("not all hosts were there within {}; host 0 says which are missing",
                                         seconds_text(launch_.start)));
    return;
  }
  const std::string& why = link_.why();
  if (!begun_) {
    if (Clock::now() - since_ > launch_.start)
      throw EnvironmentError(fmt::format("host 0 gave up before all hosts were there: {}", why));
    met_ = why;
    return;  // another launch may have had the port
  }
  host_0_lost_ = true;
  over_ = done_;
  status_ = status_ == 0 ? 1 : status_;
  news.decided = {.host = 0, .what = "is lost: " + why, .first_cause = true};
}

void Agent::take(const Frame& frame, News& news) {
  switch (frame.kind) {
    case FrameKind::refused:
      throw EnvironmentError(fmt::format("host 0 at {}:{} {}", launch_.address, launch_.port,
                                         frame.body.at("why").get<std::string>()));
    case FrameKind::begin:
      begun_ = true;
      news.begin = Begin{.launch = frame.body.at("launch").get<std::string>(),
                         .first_rank = frame.body.at("first_rank").get<int>(),
                         .world = frame.body.at("world").get<int>(),
                         .address = frame.body.at("address").get<std::string>(),
                         .port = frame.body.at("port").get<int>()};
      break;
    case FrameKind::lost:
      news.decided = loss_from(frame.body);
      break;
    case FrameKind::signal:
      news.signals.push_back(frame.body.at("number").get<int>());
      break;
    case FrameKind::suspend:
    case FrameKind::resume:
      news.suspended = suspended_ = frame.kind == FrameKind::suspend;
      link_.forget_silence();
      break;
    case FrameKind::over:
      over_ = true;
      status_ = frame.body.at("status").get<int>();
      break;
    default:
      break;
  }
}

void Agent::send_suspended(bool suspended) {
  suspended_ = suspended;
  link_.forget_silence();
  link_.send(suspended ? FrameKind::suspend : FrameKind::resume);
}

void Agent::done(int status) {
  done_ = true;
  if (status_ == 0) status_ = status;
  if (host_0_lost_) over_ = true;
  link_.send(FrameKind::done, {{"status", status}});
}

}  // namespace tessera::launching
