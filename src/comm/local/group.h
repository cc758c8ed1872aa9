// The meeting place of one group of threads: what each member calls, their barriers, and who reads whose
// buffers. Moves no data itself.
//
// A collective is a barrier (all have published), the check that all called the same, each member's copies
// from its peers, and a barrier (all have read). A member that gives up marks the world failed first and then
// waits until no peer reads; a peer marks itself reading first and then looks for failure. So no buffer is
// read after its owner has left.
#pragma once

#include <array>
#include <functional>

#include "src/comm/call.h"
#include "src/comm/local/world.h"
#include "src/comm/puller.h"
#include "tessera/id_vector.h"

namespace tessera::comm {

class LocalGroup {
 public:
  LocalGroup(LocalWorld& world, std::string name, IdVector<int> global_ranks);

  int members() const { return slots_.count(); }
  int global_rank(int member) const { return global_ranks_[member]; }
  const std::string& name() const { return name_; }
  LocalWorld& world() const { return world_; }

  // Runs copies() between the two barriers. `source` is what peers may read of this member meanwhile.
  template <class Copies>
  void collective(int me, const Call& call, const void* source, std::chrono::nanoseconds deadline,
                  const Copies& copies) {
    begin(me, call, source);
    try {
      barrier(me, deadline);
      check_match(me);
      copies();
      barrier(me, deadline);
    } catch (...) {
      abandon(me, deadline);
      throw;
    }
  }

  // Inside copies(): what peers published, to be read only between the two that follow.
  const void* source(int member) const { return slot(member).source; }
  void start_reading(int me);  // throws where the world has failed
  void stop_reading(int me) noexcept { slot(me).reading.store(false, std::memory_order_release); }
  // Inside copies(): a barrier between two reads, where sources change.
  void barrier(int me, std::chrono::nanoseconds deadline);

  // send() returns when `to` has copied.
  void send(int me, int to, const Call& call, const void* source, std::chrono::nanoseconds deadline);
  void recv(int me, int from, const Call& call, void* target, std::chrono::nanoseconds deadline);

 private:
  struct alignas(64) Slot {
    std::atomic<std::uint64_t> phase{0};  // barriers reached
    std::atomic<bool> reading{false};
    std::uint64_t sequence = 0;  // collectives begun
    Call call;                   // these three: read by peers between the barriers only
    const void* source = nullptr;
    mutable std::mutex status_mutex;
    Call status;  // for reports at any time, under the mutex
    std::uint64_t status_sequence = 0;
    std::string status_text() const;
  };
  // Messages from one member to another.
  struct alignas(64) Channel {
    std::atomic<std::uint64_t> posted{0}, taken{0};
    device::Signal signal;
    Call call;
    const void* source = nullptr;
  };
  Slot& slot(int member) { return slots_[member]; }
  const Slot& slot(int member) const { return slots_[member]; }
  Channel& channel(int from, int to);

  void begin(int me, const Call& call, const void* source);
  void announce(int me, const Call& call, std::uint64_t sequence);
  void check_match(int me);
  void abandon(int me, std::chrono::nanoseconds deadline) noexcept;

  // A wait for some members. done() and missing(member) speak of what is waited for.
  using Missing = std::function<bool(int member)>;
  template <class Done, class IsMissing>
  void wait(int me, device::Signal& signal, std::chrono::nanoseconds deadline, const Done& done,
            const IsMissing& missing);
  [[noreturn]] void throw_missing(int me, std::chrono::nanoseconds deadline, const Missing& missing);
  [[noreturn]] void throw_failed(int me) const;
  [[noreturn]] void report(int me, int culprit, const std::string& message);
  std::string current(int me) const;  // the call `me` is in, for messages

  LocalWorld& world_;
  const std::string name_;
  const IdVector<int> global_ranks_;
  IdVector<Slot> slots_;
  alignas(64) std::atomic<std::uint64_t> arrivals_{0};  // of all members at all barriers
  device::Signal arrival_signal_;
  std::once_flag channels_once_;
  IdVector<Channel> channels_;  // [from * members + to], made when first used
};

}  // namespace tessera::comm
