#include "src/launch/lead.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "src/launch/any_address.h"
#include "src/launch/note.h"
#include "src/launch/rank_environment.h"
#include "tessera/error.h"

namespace tessera::launching {

using nlohmann::json;

Lead::Lead(const ProcessLaunch& launch) : launch_(launch) {
  if (launch_.hosts > 1) listen();
}

Lead::~Lead() {
  constexpr std::chrono::seconds kLastWords{1};
  if (listener_ >= 0) ::close(listener_);
  for (Member& one : members_) one.link.end_sending();
  for (const auto end = Clock::now() + kLastWords; !members_.empty() && Clock::now() < end;) {
    std::vector<pollfd> waits;
    for (Member& one : members_) waits.push_back(one.link.wait());
    ::poll(waits.data(), waits.size(), 10);
    for (Member& one : members_) one.link.receive();
    members_.remove_if([](const Member& one) { return !one.link.is_open(); });
  }
}

void Lead::listen() {
  int bound = -1;
  for (const int family : {AF_INET6, AF_INET}) {
    listener_ = ::socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (listener_ < 0) continue;  // the system has no IPv6
    const int on = 1, off = 0;
    ::setsockopt(listener_, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (family == AF_INET6) ::setsockopt(listener_, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
    bound = bind_to_any(listener_, family, launch_.port);
    if (bound == 0 && ::listen(listener_, launch_.hosts) == 0) return;
    const int error = errno;
    ::close(listener_);
    errno = error;
    listener_ = -1;
    if (error == EADDRINUSE) break;
  }
  throw EnvironmentError(
      fmt::format("host 0 cannot listen on port {}: {}; --at names a port that is free there", launch_.port,
                  std::strerror(errno)));
}

void Lead::add_waits(std::vector<pollfd>& waits) const {
  if (listener_ >= 0) waits.push_back({.fd = listener_, .events = POLLIN, .revents = 0});
  for (const Member& one : members_) waits.push_back(one.link.wait());
}

News Lead::serve() {
  News news;
  if (listener_ >= 0) accept();
  for (Member& one : members_) look_at(one, news);
  members_.remove_if([](const Member& one) { return !one.link.is_open(); });
  begin_if_all_there(news);
  if (!begun_) check_start();
  return news;
}

void Lead::accept() {
  for (;;) {
    const int socket = ::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
    if (socket < 0) return;
    members_.emplace_back().link = HostLink(socket);
  }
}

void Lead::look_at(Member& member, News& news) {
  const std::string from = member.link.peer();
  for (const Frame& frame : member.link.receive()) try {
      take(member, frame, news);
    } catch (const json::exception&) {
      note(fmt::format("{} {}", from, kForeign));
      member.link.lose(fmt::format("it {}", kForeign));
    }
  member.link.flush();
  if (!suspended_ && !member.refused) member.link.beat(launch_.heartbeat / 4);
  if (!suspended_) member.link.close_if_silent(launch_.heartbeat);
  if (member.link.is_open()) return;
  const std::string why = member.link.why();
  if (member.host < 0 || over_) return;
  if (!begun_) note(fmt::format("host {} ({}) came and went: {}", member.host, from, why));
  if (begun_ && !member.done)
    news.losses.push_back(
        {.host = member.host, .what = fmt::format("({}) is lost: {}", from, why), .first_cause = true});
}

Lead::Member* Lead::member(int host) {
  const auto found = std::ranges::find_if(
      members_, [&](const Member& one) { return one.host == host && one.link.is_open(); });
  return found == members_.end() ? nullptr : &*found;
}

std::string Lead::objection(const Hello& hello) const {
  if (hello.build != Hello::own_build())
    return fmt::format("it runs Tessera {}, and host 0 runs {}", hello.build, Hello::own_build());
  if (hello.id != launch_.id)
    return fmt::format("its --id is '{}', and host 0's is '{}': they are of two launches", hello.id,
                       launch_.id);
  if (hello.hosts != launch_.hosts)
    return fmt::format("its --hosts is {}, and host 0's is {}", hello.hosts, launch_.hosts);
  if (hello.heartbeat_ms != launch_.heartbeat.count())
    return fmt::format("its --heartbeat is {}, and host 0's is {}",
                       seconds_text(std::chrono::milliseconds(hello.heartbeat_ms)),
                       seconds_text(launch_.heartbeat));
  if (hello.host < 1 || hello.host >= hello.hosts || hello.ranks < 1)
    return fmt::format("host {} of {} with {} ranks is none", hello.host, hello.hosts, hello.ranks);
  if (begun_) return "the launch has begun";
  for (const Member& one : members_)
    if (one.host == hello.host && one.link.is_open())
      return fmt::format("host {} is there already, from {}; each host has a --host of its own", hello.host,
                         one.link.peer());
  return {};
}

void Lead::greet(Member& member, const Hello& hello) {
  const std::string why = objection(hello);
  if (why.empty()) {
    member.host = hello.host;
    member.ranks = hello.ranks;
    return;
  }
  note(fmt::format("host {} from {} is refused: {}", hello.host, member.link.peer(), why));
  member.link.send(FrameKind::refused, {{"why", "refuses this host: " + why}});
  member.link.end_sending();
  member.refused = true;
}

void Lead::take(Member& member, const Frame& frame, News& news) {
  if (!member.link.is_open() || member.refused) return;
  if (member.host < 0) {
    if (frame.kind == FrameKind::hello) return greet(member, Hello::from(frame.body));
    return member.link.close();
  }
  switch (frame.kind) {
    case FrameKind::lost:
      news.losses.push_back(loss_from(frame.body));
      break;
    case FrameKind::signal:
      send(frame.kind, frame.body, &member);
      news.signals.push_back(frame.body.at("number").get<int>());
      break;
    case FrameKind::suspend:
    case FrameKind::resume:
      news.suspended = suspended_ = frame.kind == FrameKind::suspend;
      for (Member& one : members_) one.link.forget_silence();
      send(frame.kind, frame.body, &member);
      break;
    case FrameKind::done: {
      member.done = true;
      const int status = frame.body.at("status").get<int>();
      if (status_ == 0) status_ = status;
      break;
    }
    default:
      break;
  }
}

void Lead::begin_if_all_there(News& news) {
  if (begun_) return;
  int world = launch_.ranks;
  for (int host = 1; host < launch_.hosts; ++host) {
    const Member* const one = member(host);
    if (one == nullptr) return;
    world += one->ranks;
  }
  begun_ = true;
  Begin begin{.launch = draw_launch_id(),
              .first_rank = 0,
              .world = world,
              .address = launch_.hosts > 1 ? launch_.address : "127.0.0.1",
              .port = free_port()};
  if (!launch_.id.empty()) begin.launch = launch_.id + "-" + begin.launch;
  int first = launch_.ranks;
  for (int host = 1; host < launch_.hosts; ++host) {
    Member& one = *member(host);
    one.link.send(FrameKind::begin, {{"launch", begin.launch},
                                     {"first_rank", first},
                                     {"world", world},
                                     {"address", begin.address},
                                     {"port", begin.port}});
    first += one.ranks;
  }
  news.begin = begin;
}

void Lead::check_start() {
  if (Clock::now() - since_ < launch_.start) return;
  std::vector<int> missing;
  for (int host = 1; host < launch_.hosts; ++host)
    if (std::ranges::none_of(members_, [&](const Member& one) { return one.host == host; }))
      missing.push_back(host);
  const std::string why = fmt::format("after {} host{} {} of {} {} missing", seconds_text(launch_.start),
                                      missing.size() == 1 ? "" : "s", fmt::join(missing, ", "), launch_.hosts,
                                      missing.size() == 1 ? "is" : "are");
  send(FrameKind::refused, {{"why", "gave up: " + why}});
  throw EnvironmentError(fmt::format(
      "{}: each runs the same command with its own --host, and reaches host 0 at {}:{}; --start gives them "
      "longer",
      why, launch_.address, launch_.port));
}

void Lead::send(FrameKind kind, const json& body, const Member* but) {
  for (Member& one : members_)
    if (&one != but && one.host > 0) one.link.send(kind, body);
}

void Lead::decide(const Loss& loss) {
  status_ = loss.status;
  send(FrameKind::lost, packed(loss));
}

void Lead::send_signal(int number) { send(FrameKind::signal, {{"number", number}}); }

void Lead::send_suspended(bool suspended) {
  suspended_ = suspended;
  for (Member& one : members_) one.link.forget_silence();
  send(suspended ? FrameKind::suspend : FrameKind::resume, json::object());
}

void Lead::done(int status) {
  done_ = true;
  if (status_ == 0) status_ = status;
}

void Lead::end_if_all_done() {
  if (!done_ || over_) return;
  for (const Member& one : members_)
    if (one.host > 0 && !one.done) return;
  over_ = true;
  send(FrameKind::over, {{"status", status_}});
}

}  // namespace tessera::launching
