// A group of processes on several hosts: an exchange sends each peer what it needs of the staging buffer.
//
// The first exchange of a collective also carries the call, which every member has from every other before it
// waits for data: so all have come, and all call the same. What is on its way never refers to a caller's
// memory. Where a call fails and the transport cannot end what is on its way, buffers are kept for good: a
// late message may still be written to them.
#pragma once

#include "src/comm/staged/group.h"
#include "src/comm/staged/transport.h"
#include "tessera/id_vector.h"

namespace tessera::comm {

class MessageGroup final : public StagedGroup {
 public:
  explicit MessageGroup(Place place);
  ~MessageGroup() override;

  std::byte* outgoing() override { return memory_->outgoing.get(); }
  const std::byte* incoming(int member) override { return buffer_of(member); }
  void begin(const Call& call) override;
  void exchange(const Traffic& traffic, std::chrono::nanoseconds deadline) override;
  void send(int to, const Call& call, const void* source, std::chrono::nanoseconds deadline) override;
  void recv(int from, const Call& call, void* target, std::chrono::nanoseconds deadline) override;

 private:
  // All that the transport may write to or read from. Of each member its receive, then of each its send.
  struct Memory {
    std::unique_ptr<std::byte[]> outgoing;
    IdVector<std::unique_ptr<std::byte[]>> incoming;
    SharedCall own;
    IdVector<SharedCall> calls;
    std::unique_ptr<Transfers> headers, payloads;
  };
  // While it lives, and ever after if a call fails, messages are on their way.
  class InFlight;

  std::byte* buffer_of(int member) { return memory_->incoming[member].get(); }
  SharedCall& call_of(int member) { return memory_->calls[member]; }
  int wire_rank(int member) const { return global_rank(member); }
  int receive_of(int member) const { return member; }  // its slot
  int send_of(int member) const { return members() + member; }

  // Does what may throw a TransferError. Then the world has failed, and CommunicationError says why: a
  // process is gone, where some rank sees that within a moment; or the member cannot be reached.
  template <class Action>
  auto attempt(const Transfers& transfers, const Action& action);
  [[noreturn]] void report_unreachable(int peer, const char* what);
  void announce(const Call& call, std::uint64_t sequence);
  void post_headers();
  void post_payloads(const Traffic& traffic);
  // Until all are done.
  void wait(Transfers& transfers, std::chrono::nanoseconds deadline);
  void look_at_peers(const Transfers& transfers, device::Clock::time_point& ended_since);
  bool missing(const Transfers& transfers, int member) const;
  int first_missing(const Transfers& transfers) const;  // the last member where none is
  std::string status_text(int member) const override;
  std::string current() const override;

  const std::uint64_t tags_;
  std::unique_ptr<Memory> memory_;
  std::uint64_t sequence_ = 0;
  bool first_exchange_ = false, in_flight_ = false;
  IdVector<std::uint64_t> sent_to_, taken_from_;  // messages by member
};

}  // namespace tessera::comm
