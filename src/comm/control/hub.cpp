#include "src/comm/control/hub.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "tessera/error.h"

namespace tessera::comm {
namespace {

using asio::ip::tcp;
using std::chrono::nanoseconds;

constexpr std::chrono::milliseconds kLookEach{10};
// How long a world that failed waits for ranks that have not come, to tell them why, and for those that were
// told to end: closing a connection that holds what was not read can take back what was said on it.
constexpr std::chrono::seconds kLatecomers{2};
// How long one that says that it is a rank that is there waits for that one's end, before it is refused.
constexpr std::chrono::seconds kDoubles{2};

ControlSession::Bytes bytes_of(const std::string& text) {
  return std::make_shared<const std::vector<char>>(text.begin(), text.end());
}

}  // namespace

ControlHub::ControlHub(const ControlOptions& options)
    : world_(options.world),
      deadline_(options.deadline),
      launch_(options.launch),
      listener_(io_, options.world, options.port),
      timer_(io_),
      handlers_{
          .taken = [this](const SessionPointer& session, Frame frame) { take(session, std::move(frame)); },
          .lost = [this](const SessionPointer& session, const char* why) { lose(session, why); }},
      came_(options.world, false),
      ended_(options.world, false) {
  listener_.start({.taken = [this](tcp::socket socket) { take_connection(std::move(socket)); },
                   .failed = [this](const std::string& why) { fail(0, 0, why); }});
  look();
  thread_ = std::thread([this] { serve(); });
}

ControlHub::~ControlHub() {
  asio::post(io_, [this] {
    closing_ = true;
    linger_ = device::Patience(deadline_);
    latecomers_ = device::Patience(kLatecomers);
  });
  thread_.join();
}

void ControlHub::give_up(const std::string& why) {
  asio::post(io_, [this, why] { fail(0, 0, why); });
}

void ControlHub::serve() noexcept try {
  const std::string trouble = run();
  if (trouble.empty()) return;
  fail(0, 0, fmt::format("it cannot serve the control connections: {}", trouble));
  look();  // nobody else does by now, perhaps
  if (!run().empty()) close();
} catch (const std::exception&) {
  close();  // that, too, ends the others
}

std::string ControlHub::run() try {
  io_.run();
  return {};
} catch (const std::exception& error) {
  return error.what();
}

bool ControlHub::written() const {
  return std::all_of(sessions_.begin(), sessions_.end(),
                     [](const SessionPointer& session) { return session->written(); });
}

bool ControlHub::done() {
  if (!closing_) return false;
  const bool all_ended = std::all_of(ended_.begin(), ended_.end(), [](bool it) { return it; });
  const bool over = linger_.over(), told = latecomers_.over() && failed_;
  return (written() && all_ended) || told || over;
}

void ControlHub::close() noexcept {
  listener_.close();
  for (const SessionPointer& session : sessions_) session->close();
}

// ---- connections ----

void ControlHub::take_connection(tcp::socket socket) {
  sessions_.push_back(std::make_shared<ControlSession>(std::move(socket), handlers_));
  sessions_.back()->read();
}

void ControlHub::drop(const SessionPointer& session) {
  session->close();
  std::erase(sessions_, session);
}

void ControlHub::lose(const SessionPointer& session, const char* why) {
  drop(session);
  const int rank = session->rank;
  if (rank < 0 || has_ended(rank)) return;
  ended_[rank] = true;
  fail(rank, rank, why);
}

void ControlHub::take(const SessionPointer& session, Frame frame) {
  if (session->stranger) return;
  const FrameHeader& header = frame.header;
  if ((session->rank < 0) != (header.kind == FrameKind::hello))
    return lose(session, "it said twice that it is there");
  switch (header.kind) {
    case FrameKind::hello:
      return greet(session, Hello::from(frame));
    case FrameKind::group:
      return take_group(session, frame);
    case FrameKind::call:
      return take_call(session, std::move(frame));
    case FrameKind::fail:
      return fail(session->rank, std::clamp(header.peer, -1, world_ - 1), frame.text());
    case FrameKind::bye:
      return end(session->rank);
    default:
      return lose(session, "it sent what only rank 0 sends");
  }
}

void ControlHub::end(int rank) {
  ended_[rank] = true;
  if (failed_) return;  // which says more, and rank 0 may not have heard it yet
  FrameHeader header;
  header.kind = FrameKind::ended;
  header.member = rank;
  for (const SessionPointer& other : sessions_)
    if (other->rank >= 0 && other->rank != rank && !ended_[other->rank]) other->write(header);
}

void ControlHub::greet(const SessionPointer& session, const Hello& hello) {
  if (is_of_world(hello.rank) && has_come(hello.rank)) {
    session->stranger = true;
    held_.push_back({session, hello, device::Patience(std::min<nanoseconds>(kDoubles, deadline_ / 2))});
    return;  // the next look settles it
  }
  if (const std::string why = objection(hello); !why.empty()) return refuse(session, hello, why);
  session->rank = hello.rank;
  came_[hello.rank] = true;
  FrameHeader answer;
  answer.kind = FrameKind::welcome;
  session->write(answer);
  if (failed_ && hello.rank > 0) session->write(failure_, failure_text_);
}

// A rank's last words here and its hello to its next world come by two connections, in any order.
bool ControlHub::settle(Held& held) {
  if (!held.session->is_open()) return true;
  if (has_ended(held.hello.rank)) {  // the next world's rank 0 will listen on this port: it is to try again
    drop(held.session);
    return true;
  }
  if (!held.patience.over()) return false;
  refuse(held.session, held.hello, objection(held.hello));
  return true;
}

void ControlHub::refuse(const SessionPointer& session, const Hello& hello, const std::string& why) {
  session->stranger = true;
  if (is_of_world(hello.rank)) refused_[hello.rank] = why;
  FrameHeader answer;
  answer.kind = FrameKind::refused;
  session->write(answer, bytes_of(why));
}

std::string ControlHub::objection(const Hello& hello) const {
  if (hello.build != Hello::own_build())
    return fmt::format("it is of Tessera {}, rank 0 of {}: all ranks need one build", hello.build,
                       Hello::own_build());
  if (!hello.launch.empty() && !launch_.empty() && hello.launch != launch_)
    return fmt::format("it was started with {}, rank 0 with {}: each run needs a MASTER_PORT of its own",
                       hello.launch, launch_);
  if (hello.world != world_)
    return fmt::format("its WORLD_SIZE is {}, rank 0's is {}: all ranks need the same", hello.world, world_);
  if (!is_of_world(hello.rank)) return fmt::format("its RANK is {}; use 0 to {}", hello.rank, world_ - 1);
  if (has_come(hello.rank))
    return fmt::format(
        "another process is rank {} already: each needs a RANK, and each run a MASTER_PORT, of its own",
        hello.rank);
  return {};
}

// ---- calls ----

void ControlHub::take_group(const SessionPointer& session, const Frame& frame) {
  constexpr const char* kWhy = "it made a group that is none of this world's, or without itself";
  const auto members = static_cast<std::size_t>(std::max(frame.header.member, 0));
  const std::size_t bytes = members * sizeof(int);
  if (members == 0 || frame.bytes.size() < bytes) return lose(session, kWhy);
  IdVector<int> ranks(members);
  std::memcpy(ranks.data(), frame.bytes.data(), bytes);
  IdVector<bool> there(world_, false);
  for (const int rank : ranks) {
    if (rank < 0 || rank >= world_ || there[rank]) return lose(session, kWhy);
    there[rank] = true;
  }
  if (!there[session->rank]) return lose(session, kWhy);
  Group& group = groups_[frame.header.group];
  if (!group.ranks.empty()) return;
  group.ranks = std::move(ranks);
  group.name = frame.text().substr(bytes);
  group.statuses.resize(members);
}

void ControlHub::take_call(const SessionPointer& session, Frame frame) {
  if (failed_) return;  // the caller hears of that
  frame.header.call.shown.back() = frame.header.call.unit.back() = '\0';
  const FrameHeader header = frame.header;
  constexpr const char* kWhy = "it made a call of a group that it is not in";
  const auto found = groups_.find(header.group);
  if (found == groups_.end()) return lose(session, kWhy);
  Group& group = found->second;
  const int members = group.ranks.count();
  if (header.member < 0 || header.member >= members || header.peer >= members ||
      group.ranks[header.member] != session->rank)
    return lose(session, kWhy);
  group.statuses[header.member] = {header.call, header.sequence};
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
      for (int member = 0; member < members; ++member) pending.members.push_back(member);
    }
    pending.parts.resize(pending.members.size());
  }
  const int place = message ? (sends ? 0 : 1) : header.member;
  const device::Patience patience(std::chrono::microseconds(header.deadline_us));
  pending.parts[place] = {session, std::move(frame), patience};
  if (std::any_of(pending.parts.begin(), pending.parts.end(), [](const Part& part) { return !part.from; }))
    return;
  const Pending complete_one = std::move(pending);
  pending_.erase(key);
  if (matches(complete_one)) complete(complete_one);
}

bool ControlHub::matches(const Pending& pending) {
  const Group& group = groups_.at(pending.group);
  const Part& first = pending.parts[0];
  for (int place = 1; place < pending.parts.count(); ++place) {
    const Part& other = pending.parts[place];
    const WireCall &mine = first.frame.header.call, &theirs = other.frame.header.call;
    const bool same = pending.message ? mine.count == theirs.count && mine.unit == theirs.unit
                                      : mine.local().matches(theirs.local());
    if (same) continue;
    const int reporter = group.ranks[pending.members[0]];
    const int peer = group.ranks[pending.members[place]];
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
  const auto shared = std::make_shared<const std::vector<char>>(std::move(all));
  for (const Part& part : pending.parts) {
    FrameHeader reply = part.frame.header;
    reply.kind = FrameKind::reply;
    const bool to_sender = pending.message && reply.call.operation == Operation::send;
    part.from->write(reply, to_sender ? nullptr : shared);
  }
}

// ---- deadlines and failures ----

void ControlHub::look() {
  if (done()) {
    close();
    return io_.stop();
  }
  std::erase_if(held_, [this](Held& held) { return settle(held); });
  for (auto& [key, pending] : pending_)
    if (!failed_ && look_at(pending)) break;
  if (failed_) {
    pending_.clear();
    tell_rank_zero();
  }
  timer_.expires_after(kLookEach);
  timer_.async_wait([this](const asio::error_code& error) {
    if (error != asio::error::operation_aborted) look();
  });
}

bool ControlHub::look_at(Pending& pending) {
  const Group& group = groups_.at(pending.group);
  const auto rank_of = [&](int place) { return group.ranks[pending.members[place]]; };
  std::vector<int> absent;
  std::vector<int> absent_places;
  for (int place = 0; place < pending.parts.count(); ++place) {
    if (pending.parts[place].from) continue;
    absent.push_back(rank_of(place));
    absent_places.push_back(place);
  }
  const bool any_ended =
      std::any_of(absent.begin(), absent.end(), [this](int rank) { return has_ended(rank); });
  for (int place = 0; place < pending.parts.count(); ++place) {
    Part& part = pending.parts[place];
    if (!part.from || (!part.patience.over() && !any_ended)) continue;
    const IdVector<RankState> state_of = states(absent);
    const Blame blame = blame_for(
        {.call = text(pending, part, false),
         .reporter = rank_of(place),
         .ranks = world_,
         .absent = absent,
         .deadline = std::chrono::microseconds(part.frame.header.deadline_us),
         .ended = [this](int rank) { return has_ended(rank); },
         .state = [&](int rank) { return state_of[rank]; },
         .status = [&](std::size_t k) { return status_text(group, pending.members[absent_places[k]]); }});
    fail(rank_of(place), blame.culprit, blame.message);
    return true;
  }
  return false;
}

// Who has brought its part of a call waits for the other members. Of ranks that do not, only those are known
// to be waited for that `absent` wait for, or those for which these wait, and so on.
IdVector<RankState> ControlHub::states(const std::vector<int>& absent) const {
  IdVector<RankState> states(world_, RankState::unknown);
  std::vector<int> awaited = absent;
  for (std::size_t next = 0; next < awaited.size(); ++next) {
    const int rank = awaited[next];
    RankState& state = states[rank];
    if (state != RankState::unknown) continue;
    state = RankState::working;
    for (const auto& entry : pending_) {
      const Pending& pending = entry.second;
      const Group& group = groups_.at(pending.group);
      const auto rank_of = [&](int place) { return group.ranks[pending.members[place]]; };
      bool waits = false;
      for (int place = 0; place < pending.parts.count(); ++place)
        waits = waits || (pending.parts[place].from && rank_of(place) == rank);
      if (!waits) continue;
      state = RankState::waiting;
      for (int place = 0; place < pending.parts.count(); ++place)
        if (!pending.parts[place].from) awaited.push_back(rank_of(place));
    }
  }
  return states;
}

void ControlHub::fail(int reporter, int culprit, const std::string& message) {
  if (failed_) return;
  failed_ = true;
  telling_ = device::Patience(kTells);
  failure_.kind = FrameKind::failed;
  failure_.member = reporter;
  failure_.peer = culprit;
  failure_text_ = bytes_of(message);
  for (const SessionPointer& session : sessions_)
    if (session->rank > 0)  // others hear of it behind their welcome
      session->write(failure_, failure_text_);
}

// Behind the others: its process may end when it hears, and this thread with it.
void ControlHub::tell_rank_zero() {
  if (rank_zero_told_ || (!written() && !telling_.over())) return;
  for (const SessionPointer& session : sessions_) {
    if (session->rank != 0) continue;
    session->write(failure_, failure_text_);
    rank_zero_told_ = true;
  }
}

std::string ControlHub::text(const Pending& pending, const Part& part, bool full) const {
  const FrameHeader& header = part.frame.header;
  const Call call = header.call.local();
  return fmt::format("{} on '{}'", full ? call.full_text(header.sequence) : call.text(header.sequence),
                     groups_.at(pending.group).name);
}

std::string ControlHub::status_text(const Group& group, int member) const {
  const int rank = group.ranks[member];
  if (!has_come(rank)) {
    const auto refused = refused_.find(rank);
    return refused == refused_.end()
               ? "has not come"
               : fmt::format("has not come; a process that would be it was refused: {}", refused->second);
  }
  const Group::Status& status = group.statuses[member];
  if (status.sequence == 0) return "has made no call there";
  const std::string unit =
      status.call.unit[0] == '\0' ? "" : fmt::format(" of unit '{}'", status.call.unit.data());
  return fmt::format("is at #{}, {}{}", status.sequence, status.call.shown.data(), unit);
}

}  // namespace tessera::comm
