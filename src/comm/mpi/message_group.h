// A group of processes on several hosts: an exchange sends each peer what it needs of the staging buffer.
//
// The first exchange of a collective also carries the call, which every member has from every other before it
// waits for data: so all have come, and all call the same. What is on its way never refers to a caller's
// memory; where a call fails, its buffers are kept for good, for a late message may still be written to them.
#pragma once

#include "src/comm/mpi/group.h"
#include "src/comm/mpi/wire.h"
#include "tessera/id_vector.h"

namespace tessera::comm {

class MpiMessageGroup final : public MpiGroup {
 public:
  explicit MpiMessageGroup(Place place);
  ~MpiMessageGroup() override;

  std::byte* outgoing() override { return memory_->outgoing.get(); }
  const std::byte* incoming(int member) override { return buffer_of(member); }
  void begin(const Call& call) override;
  void exchange(const Traffic& traffic, std::chrono::nanoseconds deadline) override;
  void send(int to, const Call& call, const void* source, std::chrono::nanoseconds deadline) override;
  void recv(int from, const Call& call, void* target, std::chrono::nanoseconds deadline) override;

 private:
  // Of each member its receive, then of each its send; null where there is none or it is done.
  using Requests = IdVector<MPI_Request>;
  // All that MPI may write to or read from.
  struct Memory {
    std::unique_ptr<std::byte[]> outgoing;
    IdVector<std::unique_ptr<std::byte[]>> incoming;
    SharedCall own;
    IdVector<SharedCall> calls;
    Requests headers, payloads;
  };
  // While it lives, and ever after if a call fails, messages are on their way.
  class InFlight;

  std::byte* buffer_of(int member) { return memory_->incoming[member].get(); }
  SharedCall& call_of(int member) { return memory_->calls[member]; }
  int wire_rank(int member) const { return global_rank(member); }
  MPI_Comm wire() const { return world()->wire().messages(); }
  MPI_Request& receive_of(Requests& requests, int member) const;
  MPI_Request& send_of(Requests& requests, int member) const;

  // Returns where `call`, which was to communicate with member `peer`, succeeded. Else the world has failed,
  // and CommunicationError says why: a process is gone, where some rank sees that within a moment; or `peer`
  // cannot be reached.
  void check(int status, const char* call, int peer);
  void announce(const Call& call, std::uint64_t sequence);
  void post_headers();
  void post_payloads(const Traffic& traffic);
  // Until all are done.
  void wait(Requests& requests, std::chrono::nanoseconds deadline);
  void look_at_peers(const Requests& requests, device::Clock::time_point& ended_since);
  bool missing(const Requests& requests, int member) const;
  int first_missing(const Requests& requests) const;  // the last member where none is
  std::string status_text(int member) const override;
  std::string current() const override;

  const int tags_;
  std::unique_ptr<Memory> memory_;
  std::uint64_t sequence_ = 0;
  bool first_exchange_ = false, in_flight_ = false;
  IdVector<std::uint64_t> sent_to_, taken_from_;  // messages by member
};

}  // namespace tessera::comm
