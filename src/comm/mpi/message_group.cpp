#include "src/comm/mpi/message_group.h"

#include <fmt/format.h>

#include <algorithm>
#include <thread>

namespace tessera::comm {
namespace {

using std::chrono::microseconds;
using std::chrono::nanoseconds;

constexpr std::int64_t kBufferBytes = 256 * 1024;
constexpr std::int64_t kLine = 64;
// Between looks while waiting; it grows to the longest.
constexpr microseconds kFirstNap{10}, kLongestNap{1000};
// A rank's last messages may come behind the notice that it has ended.
constexpr std::chrono::milliseconds kGrace{200};

enum Tag { header, payload, message_header, message_payload };  // behind the group's first tag

}  // namespace

// ---- what is on its way ----

class MpiMessageGroup::InFlight {
 public:
  explicit InFlight(MpiMessageGroup& group) : group_(group) { group_.in_flight_ = true; }
  void landed() { group_.in_flight_ = false; }

 private:
  MpiMessageGroup& group_;
};

MpiMessageGroup::MpiMessageGroup(Place place)
    : MpiGroup(std::move(place)),
      tags_(world()->wire().take_tags(key(), name(), global_ranks())),
      memory_(std::make_unique<Memory>()),
      sent_to_(members()),
      taken_from_(members()) {
  buffer_bytes_ = std::max(kBufferBytes, members() * kLine);
  const auto bytes = static_cast<std::size_t>(buffer_bytes_);
  memory_->outgoing.reset(new std::byte[bytes]);  // not touched before it is used
  for (int member = 0; member < members(); ++member)
    memory_->incoming.emplace_back(member == me() ? nullptr : new std::byte[bytes]);
  memory_->calls = IdVector<SharedCall>(members());
  memory_->headers = Requests(2 * members(), MPI_REQUEST_NULL);
  memory_->payloads = Requests(2 * members(), MPI_REQUEST_NULL);
}

// What is still on its way keeps its memory, and its tags.
MpiMessageGroup::~MpiMessageGroup() {
  if (in_flight_)
    static_cast<void>(memory_.release());
  else
    world()->wire().give_back_tags(key());
}

void MpiMessageGroup::check(int status, const char* call, int peer) {
  if (status == MPI_SUCCESS) return;
  SharedWorld& shared = world()->shared();
  for (device::Patience patience(kGrace); !shared.failed() && !patience.over();
       std::this_thread::sleep_for(kLongestNap))
    world()->look_around();
  if (shared.failed()) throw_failed();
  const int rank = global_rank(peer);
  report(rank, fmt::format("{}: rank {} cannot be reached: {}", current(), rank, mpi_error(status, call)));
}

MPI_Request& MpiMessageGroup::receive_of(Requests& requests, int member) const { return requests[member]; }

MPI_Request& MpiMessageGroup::send_of(Requests& requests, int member) const {
  return requests[members() + member];
}

// ---- waits ----

bool MpiMessageGroup::missing(const Requests& requests, int member) const {
  return requests[member] != MPI_REQUEST_NULL || requests[members() + member] != MPI_REQUEST_NULL;
}

int MpiMessageGroup::first_missing(const Requests& requests) const {
  int member = 0;
  while (member + 1 < members() && !missing(requests, member)) ++member;
  return member;
}

// Throws if the world has failed or a peer that is waited for ended a while ago.
void MpiMessageGroup::look_at_peers(const Requests& requests, device::Clock::time_point& ended_since) {
  world()->look_around();
  SharedWorld& shared = world()->shared();
  if (shared.failed()) throw_failed();
  if (!shared.any_ended()) return;
  bool ended = false;
  for (int member = 0; member < members(); ++member)
    ended = ended || (missing(requests, member) && shared.ended(global_rank(member)));
  const auto now = device::Clock::now();
  if (!ended)
    ended_since = device::Clock::time_point::max();
  else if (ended_since == device::Clock::time_point::max())
    ended_since = now;
  else if (now - ended_since >= kGrace)
    throw_missing(nanoseconds::zero(), [&](int member) { return missing(requests, member); });
}

void MpiMessageGroup::wait(Requests& requests, nanoseconds deadline) {
  const device::WaitPolicy& policy = world()->policy();
  device::Patience patience(deadline);
  auto ended_since = device::Clock::time_point::max();
  device::Yields yields(policy);
  microseconds nap = kFirstNap;
  std::vector<int> indices(requests.size());
  std::vector<MPI_Status> statuses(requests.size());
  for (int look = 0;; ++look) {
    int done = 0;
    const int status = MPI_Testsome(static_cast<int>(requests.size()), requests.data(), &done, indices.data(),
                                    statuses.data());
    if (done == MPI_UNDEFINED) return;  // none is left
    if (status == MPI_ERR_IN_STATUS) {
      for (std::size_t i = 0; i < static_cast<std::size_t>(done); ++i)
        check(statuses[i].MPI_ERROR, "MPI_Testsome", indices[i] % members());
    } else {
      check(status, "MPI_Testsome", first_missing(requests));
    }
    if (look < policy.spins / 20) continue;
    if (yields.yield()) continue;
    look_at_peers(requests, ended_since);
    if (patience.over()) throw_missing(deadline, [&](int member) { return missing(requests, member); });
    std::this_thread::sleep_for(nap);
    nap = std::min(2 * nap, kLongestNap);
  }
}

// ---- collectives ----

void MpiMessageGroup::announce(const Call& call, std::uint64_t sequence) {
  memory_->own = SharedCall(call, sequence);
  if (in_flight_ || world()->shared().failed()) throw_failed();
}

void MpiMessageGroup::begin(const Call& call) {
  announce(call, sequence_ + 1);
  ++sequence_;
  first_exchange_ = true;
}

void MpiMessageGroup::post_headers() {
  constexpr int kBytes = sizeof(SharedCall);
  for (int step = 1; step < members(); ++step) {
    const int peer = (me() + step) % members();
    check(MPI_Irecv(&call_of(peer), kBytes, MPI_BYTE, wire_rank(peer), tags_ + header, wire(),
                    &receive_of(memory_->headers, peer)),
          "MPI_Irecv", peer);
    check(MPI_Isend(&memory_->own, kBytes, MPI_BYTE, wire_rank(peer), tags_ + header, wire(),
                    &send_of(memory_->headers, peer)),
          "MPI_Isend", peer);
  }
}

void MpiMessageGroup::post_payloads(const Traffic& traffic) {
  const auto offset_of = [&](int member) { return std::min(buffer_bytes_, member * traffic.stride_bytes); };
  for (int step = 1; step < members(); ++step) {
    const int peer = (me() + step) % members();
    const std::int64_t offset = offset_of(me());
    if (traffic.shows(peer))
      check(MPI_Irecv(buffer_of(peer) + offset, static_cast<int>(buffer_bytes_ - offset), MPI_BYTE,
                      wire_rank(peer), tags_ + payload, wire(), &receive_of(memory_->payloads, peer)),
            "MPI_Irecv", peer);
    if (traffic.shows(me()))
      check(MPI_Isend(outgoing() + offset_of(peer), static_cast<int>(traffic.bytes_for(peer)), MPI_BYTE,
                      wire_rank(peer), tags_ + payload, wire(), &send_of(memory_->payloads, peer)),
            "MPI_Isend", peer);
  }
}

void MpiMessageGroup::exchange(const Traffic& traffic, nanoseconds deadline) {
  InFlight messages(*this);
  if (first_exchange_) post_headers();
  post_payloads(traffic);
  if (first_exchange_) {
    wait(memory_->headers, deadline);
    for (int member = 0; member < members(); ++member)
      if (member != me()) check_match(memory_->own, call_of(member), member);
  }
  first_exchange_ = false;
  wait(memory_->payloads, deadline);
  messages.landed();
}

// ---- messages ----

void MpiMessageGroup::send(int to, const Call& call, const void* source, nanoseconds deadline) {
  announce(call, ++sent_to_[to]);
  InFlight messages(*this);
  check(MPI_Isend(&memory_->own, sizeof(SharedCall), MPI_BYTE, wire_rank(to), tags_ + message_header, wire(),
                  &send_of(memory_->headers, to)),
        "MPI_Isend", to);
  std::int64_t begin = 0;
  do {
    const std::int64_t bytes = std::min(buffer_bytes_, call.count - begin);
    kernels::copy(outgoing(), static_cast<const char*>(source) + begin, bytes);
    check(MPI_Issend(outgoing(), static_cast<int>(bytes), MPI_BYTE, wire_rank(to), tags_ + message_payload,
                     wire(), &send_of(memory_->payloads, to)),
          "MPI_Issend", to);
    wait(memory_->payloads, deadline);
    begin += bytes;
  } while (begin < call.count);
  wait(memory_->headers, deadline);
  messages.landed();
}

void MpiMessageGroup::recv(int from, const Call& call, void* target, nanoseconds deadline) {
  announce(call, ++taken_from_[from]);
  InFlight messages(*this);
  check(MPI_Irecv(&call_of(from), sizeof(SharedCall), MPI_BYTE, wire_rank(from), tags_ + message_header,
                  wire(), &receive_of(memory_->headers, from)),
        "MPI_Irecv", from);
  wait(memory_->headers, deadline);
  check_message(memory_->own, call_of(from), from);
  std::int64_t begin = 0;
  do {
    const std::int64_t bytes = std::min(buffer_bytes_, call.count - begin);
    check(MPI_Irecv(buffer_of(from), static_cast<int>(bytes), MPI_BYTE, wire_rank(from),
                    tags_ + message_payload, wire(), &receive_of(memory_->payloads, from)),
          "MPI_Irecv", from);
    wait(memory_->payloads, deadline);
    kernels::copy(static_cast<char*>(target) + begin, buffer_of(from), bytes);
    begin += bytes;
  } while (begin < call.count);
  messages.landed();
}

// ---- errors ----

// By the last call that it told this rank: that of what it sent.
std::string MpiMessageGroup::status_text(int member) const {
  const SharedCall& call = memory_->calls[member];
  return call.sequence == 0 ? "has sent nothing here" : call.status_text();
}

std::string MpiMessageGroup::current() const {
  return fmt::format("{} on '{}'", memory_->own.local().text(memory_->own.sequence), name());
}

}  // namespace tessera::comm
