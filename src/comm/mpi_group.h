// The meeting place of one group of processes on one host: what each member calls, their barriers, and two
// staging buffers a member, through which all data goes. The counterpart of LocalGroup, whose members can
// read each other's memory.
//
// The buffers take turns by barrier: before barrier p a member writes its buffer p % 2, between the barriers
// p and p + 1 its peers read it. When barrier p has passed, all have read what was written for p - 1, so the
// other buffer is free. No barrier is needed at the end of a call, and no peer ever reads a caller's memory.
#pragma once

#include <cstddef>
#include <functional>

#include "src/comm/local_group.h"
#include "src/comm/mpi_world.h"

namespace tessera::comm {

class MpiGroup {
 public:
  MpiGroup(std::shared_ptr<MpiWorld> world, const GroupKey& parent, std::vector<int> global_ranks, int me,
           std::string name);
  ~MpiGroup();
  MpiGroup(const MpiGroup&) = delete;
  MpiGroup& operator=(const MpiGroup&) = delete;

  int me() const { return me_; }
  int members() const { return static_cast<int>(global_ranks_.size()); }
  int global_rank(int member) const { return global_ranks_[static_cast<std::size_t>(member)]; }
  const std::string& name() const { return name_; }
  const GroupKey& key() const { return key_; }
  const std::shared_ptr<MpiWorld>& world() const { return world_; }

  // Of each staging buffer; the same on all members, a multiple of 64.
  std::int64_t buffer_bytes() const { return buffer_bytes_; }
  // This rank's buffer, to be written before the next barrier.
  std::byte* outgoing() { return buffer(me_, phase_ + 1); }
  // What `member` wrote before the last barrier.
  const std::byte* incoming(int member) { return buffer(member, phase_); }

  // A collective: begin(), then barrier()s, check_match() behind the first.
  void begin(const LocalCall& call);
  void barrier(std::chrono::nanoseconds deadline);
  void check_match();

  // send() returns when `to` has copied.
  void send(int to, const LocalCall& call, const void* source, std::chrono::nanoseconds deadline);
  void recv(int from, const LocalCall& call, void* target, std::chrono::nanoseconds deadline);

 private:
  // A LocalCall without pointers.
  struct SharedCall {
    SharedCall() = default;
    explicit SharedCall(const LocalCall& call);
    LocalCall local() const;  // refers to this object

    LocalCall call;
    std::array<char, 32> shown{};
  };
  // All zeros at first.
  struct alignas(64) Head {
    std::atomic<std::uint64_t> arrivals{0};  // of all members at all barriers
    SharedSignal signal;
  };
  struct alignas(64) Slot {
    std::atomic<std::uint64_t> phase{0};  // barriers reached
    std::array<SharedCall, 2> calls;      // by a collective's number; read by peers behind its first barrier
    // The message on its way, if any: at most one, for send() waits. In pieces, counted over all messages.
    std::atomic<int> to{-1};
    std::atomic<std::uint64_t> posted{0}, taken{0};
    SharedSignal signal;
    SharedCall message;
    std::uint64_t message_buffer = 0;
    // For reports at any time.
    SharedMutex status_mutex;
    SharedCall status;
    std::uint64_t status_sequence = 0;
  };

  static std::int64_t head_bytes(int members);
  void lay_out(const SharedWorld::Room& room) const;
  Slot& slot(int member) const { return slots_[member]; }
  std::byte* buffer(int member, std::uint64_t phase) const;
  std::int64_t piece_bytes() const { return buffer_bytes_ / 2; }
  std::int64_t pieces_of(std::int64_t bytes) const;
  std::byte* piece(int from, std::int64_t index) const;

  void announce(const LocalCall& call, std::uint64_t sequence);
  std::string status_text(int member) const;
  std::string current() const;  // the call this rank is in, for messages

  using Missing = std::function<bool(int member)>;
  template <class Done, class IsMissing>
  void wait(SharedSignal& signal, std::chrono::nanoseconds deadline, const Done& done,
            const IsMissing& missing);
  [[noreturn]] void throw_missing(std::chrono::nanoseconds deadline, const Missing& missing);
  [[noreturn]] void report(int culprit, const std::string& message);

  const std::shared_ptr<MpiWorld> world_;
  const std::string name_;
  const std::vector<int> global_ranks_;
  const int me_;
  const GroupKey key_;
  SharedWorld::Room room_;
  Head* head_ = nullptr;
  Slot* slots_ = nullptr;
  std::byte* buffers_ = nullptr;
  std::int64_t buffer_bytes_ = 0;
  std::uint64_t phase_ = 0, sequence_ = 0;           // this rank's barriers and collectives
  std::vector<std::uint64_t> sent_to_, taken_from_;  // messages by member
};

}  // namespace tessera::comm
