#include "src/comm/control_hub.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "src/comm/blame.h"
#include "tessera/error.h"

namespace tessera::comm {
namespace {

using asio::ip::tcp;
using device::Clock;

constexpr std::chrono::milliseconds kLookEach{10};
// How long a world that failed waits for ranks that have not come, to tell them why, and for those that were
// told to end: closing a connection that holds what was not read can take back what was said on it.
constexpr std::chrono::seconds kLatecomers{2};

}  // namespace

ControlHub::ControlHub(int world, int port, std::chrono::nanoseconds linger)
    : world_(world),
      linger_(linger),
      acceptor_(io_),
      timer_(io_),
      ended_(static_cast<std::size_t>(world), false) {
  try {
    // Where the system has IPv6, such a socket takes both.
    const tcp::endpoint any(tcp::v4(), static_cast<unsigned short>(port));
    acceptor_.open(any.protocol());
    acceptor_.set_option(tcp::acceptor::reuse_address(true));
    acceptor_.bind(any);
    acceptor_.listen(world);
  } catch (const std::system_error& error) {
    throw EnvironmentError(fmt::format(
        "rank 0 cannot listen on port {}: {}; MASTER_PORT must be free on its host", port, error.what()));
  }
  accept();
  look();
  thread_ = std::thread([this] { io_.run(); });
}

ControlHub::~ControlHub() {
  asio::post(io_, [this] {
    closing_ = true;
    close_by_ = Clock::now() + linger_;
    latecomers_by_ = Clock::now() + kLatecomers;
  });
  thread_.join();
}

bool ControlHub::done() const {
  const bool written = std::all_of(sessions_.begin(), sessions_.end(), [](const SessionPointer& session) {
    return session->outgoing.empty() || !session->socket.is_open();
  });
  const bool all_ended = std::all_of(ended_.begin(), ended_.end(), [](bool it) { return it; });
  const Clock::time_point now = Clock::now();
  const bool told = failed_ && now >= latecomers_by_;
  return closing_ && ((written && (all_ended || told)) || now >= close_by_);
}

// ---- connections ----

void ControlHub::accept() {
  acceptor_.async_accept([this](const asio::error_code& error, tcp::socket socket) {
    if (!acceptor_.is_open()) return;
    if (!error) {
      asio::error_code ignored;
      socket.set_option(tcp::no_delay(true), ignored);
      sessions_.push_back(std::make_shared<Session>(std::move(socket)));
      read(sessions_.back());
    }
    accept();
  });
}

void ControlHub::read(const SessionPointer& session) {
  FrameHeader& header = session->incoming.header;
  asio::async_read(session->socket, asio::buffer(&header, sizeof header),
                   [this, session](const asio::error_code& error, std::size_t) {
                     if (error || !session->incoming.header.valid()) return lose(session);
                     session->incoming.bytes.resize(static_cast<std::size_t>(session->incoming.header.bytes));
                     asio::async_read(session->socket, asio::buffer(session->incoming.bytes),
                                      [this, session](const asio::error_code& error_behind, std::size_t) {
                                        if (error_behind)
                                          return lose(session, "its connection ended within what it sent");
                                        take(session);
                                        if (session->socket.is_open()) read(session);
                                      });
                   });
}

void ControlHub::write(const SessionPointer& session, std::vector<char> frame) {
  session->outgoing.push_back(std::move(frame));
  if (session->outgoing.size() == 1) write_next(session);
}

void ControlHub::write_next(const SessionPointer& session) {
  asio::async_write(session->socket, asio::buffer(session->outgoing.front()),
                    [this, session](const asio::error_code& error, std::size_t) {
                      if (error) return;  // reading finds it, too
                      session->outgoing.pop_front();
                      if (!session->outgoing.empty()) write_next(session);
                    });
}

void ControlHub::lose(const SessionPointer& session, const char* why) {
  asio::error_code ignored;
  session->socket.close(ignored);
  std::erase(sessions_, session);
  const int rank = session->rank;
  if (rank < 0 || ended_[static_cast<std::size_t>(rank)]) return;
  ended_[static_cast<std::size_t>(rank)] = true;
  fail(rank, rank, why);
}

void ControlHub::take(const SessionPointer& session) {
  Frame frame = std::move(session->incoming);
  session->incoming = {};
  const FrameHeader& header = frame.header;
  switch (header.kind) {
    case FrameKind::hello:
      if (header.member < 0 || header.member >= world_) return lose(session);
      session->rank = header.member;
      if (failed_) write(session, failure_);
      return;
    case FrameKind::group:
      return take_group(frame);
    case FrameKind::call:
      return take_call(session, std::move(frame));
    case FrameKind::fail:
      return fail(header.member, header.peer, {frame.bytes.begin(), frame.bytes.end()});
    case FrameKind::bye:
      ended_[static_cast<std::size_t>(std::max(session->rank, 0))] = true;
      return;
    default:
      return lose(session);
  }
}

// ---- calls ----

void ControlHub::take_group(const Frame& frame) {
  Group& group = groups_[frame.header.group];
  if (!group.ranks.empty()) return;
  const auto members = static_cast<std::size_t>(std::max(frame.header.member, 0));
  if (frame.bytes.size() < members * sizeof(int)) return;
  group.ranks.resize(members);
  std::memcpy(group.ranks.data(), frame.bytes.data(), members * sizeof(int));
  group.name.assign(frame.bytes.begin() + static_cast<std::ptrdiff_t>(members * sizeof(int)),
                    frame.bytes.end());
  group.statuses.resize(members);
}

void ControlHub::take_call(const SessionPointer& session, Frame frame) {
  if (failed_) return;  // the caller hears of that
  const FrameHeader header = frame.header;
  const auto found = groups_.find(header.group);
  if (found == groups_.end()) return lose(session);
  Group& group = found->second;
  const int members = static_cast<int>(group.ranks.size());
  if (header.member < 0 || header.member >= members || header.peer >= members) return lose(session);
  group.statuses[static_cast<std::size_t>(header.member)] = {header.call, header.sequence};
  const bool sends = header.call.operation == Operation::send;
  const bool message = header.peer >= 0;
  const int from = sends ? header.member : header.peer, to = sends ? header.peer : header.member;
  const auto piece = static_cast<std::uint64_t>(header.piece);
  const Key key = message ? Key{header.group, static_cast<std::uint64_t>(from) + 1,
                                static_cast<std::uint64_t>(to) + 1, header.sequence, piece}
                          : Key{header.group, 0, 0, header.sequence, piece};
  Pending& pending = pending_[key];
  if (pending.members.empty()) {
    pending.group = header.group;
    pending.message = message;
    if (message) {
      pending.members = {from, to};
    } else {
      pending.members.resize(group.ranks.size());
      for (std::size_t member = 0; member < group.ranks.size(); ++member)
        pending.members[member] = static_cast<int>(member);
    }
    pending.parts.resize(pending.members.size());
  }
  const std::size_t place = message ? (sends ? 0U : 1U) : static_cast<std::size_t>(header.member);
  pending.parts[place] = {session, std::move(frame), Clock::now()};
  if (std::any_of(pending.parts.begin(), pending.parts.end(), [](const Part& part) { return !part.from; }))
    return;
  const Pending complete_one = std::move(pending);
  pending_.erase(key);
  if (matches(complete_one)) complete(complete_one);
}

bool ControlHub::matches(const Pending& pending) {
  const Group& group = groups_.at(pending.group);
  const Part& first = pending.parts[0];
  for (std::size_t place = 1; place < pending.parts.size(); ++place) {
    const Part& other = pending.parts[place];
    const WireCall &mine = first.frame.header.call, &theirs = other.frame.header.call;
    const bool same = pending.message ? mine.count == theirs.count && mine.unit == theirs.unit
                                      : mine.local().matches(theirs.local());
    if (same) continue;
    const int reporter = group.ranks[static_cast<std::size_t>(pending.members[0])];
    const int peer = group.ranks[static_cast<std::size_t>(pending.members[place])];
    fail(reporter, -1,
         fmt::format("{}: rank {} called {}; {}", text(pending, first, true), peer,
                     theirs.local().full_text(other.frame.header.sequence),
                     pending.message ? "both must name the same unit and bytes"
                                     : "all must make the same calls in the same order"));
    return false;
  }
  return true;
}

void ControlHub::complete(const Pending& pending) {
  std::vector<char> all;
  for (const Part& part : pending.parts)
    all.insert(all.end(), part.frame.bytes.begin(), part.frame.bytes.end());
  for (const Part& part : pending.parts) {
    FrameHeader reply = part.frame.header;
    reply.kind = FrameKind::reply;
    const bool to_sender = pending.message && reply.call.operation == Operation::send;
    write(part.from, packed(reply, to_sender ? std::span<const char>() : std::span<const char>(all)));
  }
}

// ---- deadlines and failures ----

void ControlHub::look() {
  if (done()) {
    asio::error_code ignored;
    acceptor_.close(ignored);
    for (const SessionPointer& session : sessions_) session->socket.close(ignored);
    return io_.stop();
  }
  const Clock::time_point now = Clock::now();
  for (const auto& [key, pending] : pending_)
    if (!failed_ && look_at(pending, now)) break;
  if (failed_) pending_.clear();
  timer_.expires_after(kLookEach);
  timer_.async_wait([this](const asio::error_code&) { look(); });
}

bool ControlHub::look_at(const Pending& pending, Clock::time_point now) {
  const Group& group = groups_.at(pending.group);
  const auto rank_of = [&](std::size_t place) {
    return group.ranks[static_cast<std::size_t>(pending.members[place])];
  };
  std::vector<int> absent;
  std::vector<std::size_t> absent_places;
  for (std::size_t place = 0; place < pending.parts.size(); ++place) {
    if (pending.parts[place].from) continue;
    absent.push_back(rank_of(place));
    absent_places.push_back(place);
  }
  const auto ended = [&](int rank) { return ended_[static_cast<std::size_t>(rank)]; };
  const bool any_ended = std::any_of(absent.begin(), absent.end(), ended);
  for (std::size_t place = 0; place < pending.parts.size(); ++place) {
    const Part& part = pending.parts[place];
    if (!part.from) continue;
    const std::chrono::microseconds deadline(part.frame.header.deadline_us);
    if (!any_ended && now - part.came < deadline) continue;
    const Blame blame = blame_for(
        {.call = text(pending, part, false),
         .reporter = rank_of(place),
         .ranks = world_,
         .absent = absent,
         .deadline = deadline,
         .ended = ended,
         .state = [](int) { return RankState::unknown; },
         .status = [&](std::size_t k) { return status_text(group, pending.members[absent_places[k]]); }});
    fail(rank_of(place), blame.culprit, blame.message);
    return true;
  }
  return false;
}

void ControlHub::fail(int reporter, int culprit, const std::string& message) {
  if (failed_) return;
  failed_ = true;
  FrameHeader header;
  header.kind = FrameKind::failed;
  header.member = reporter;
  header.peer = culprit;
  failure_ = packed(header, message);
  for (const SessionPointer& session : sessions_) write(session, failure_);
}

std::string ControlHub::text(const Pending& pending, const Part& part, bool full) const {
  const FrameHeader& header = part.frame.header;
  const LocalCall call = header.call.local();
  return fmt::format("{} on '{}'", full ? call.full_text(header.sequence) : call.text(header.sequence),
                     groups_.at(pending.group).name);
}

std::string ControlHub::status_text(const Group& group, int member) const {
  const Group::Status& status = group.statuses[static_cast<std::size_t>(member)];
  if (status.sequence == 0) return "has made no call there";
  const std::string unit =
      status.call.unit[0] == '\0' ? "" : fmt::format(" of unit '{}'", status.call.unit.data());
  return fmt::format("is at #{}, {}{}", status.sequence, status.call.shown.data(), unit);
}

}  // namespace tessera::comm
