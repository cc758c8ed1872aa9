// A group of processes on one host: two staging buffers a member in the range that they share, and, for large
// calls on registered arenas, the peers' own memory.
//
// The buffers take turns by barrier: before barrier p a member writes its buffer p % 2, between the barriers
// p and p + 1 its peers read it. When barrier p has passed, all have read what was written for p - 1, so the
// other buffer is free. No barrier is needed at the end of such a call, and no peer reads a caller's memory.
//
// A call that reads the peers' memory is a barrier (all have shown where their buffers lie), the pulls, and a
// barrier (all have read). A member that gives up marks the world failed first and then waits until no peer
// reads; a peer marks itself reading first and then looks for failure.
#pragma once

#include "src/comm/staged/group.h"
#include "tessera/id_vector.h"

namespace tessera::comm {

class SharedGroup final : public StagedGroup, private Puller {
 public:
  explicit SharedGroup(Place place);
  ~SharedGroup() override;

  std::byte* outgoing() override { return buffer(me(), phase_ + 1); }
  const std::byte* incoming(int member) override { return buffer(member, phase_); }
  void begin(const Call& call) override;
  void exchange(const Traffic& traffic, std::chrono::nanoseconds deadline) override;
  Puller* open(const void* source, std::int64_t bytes, std::chrono::nanoseconds deadline) override;
  void close(std::chrono::nanoseconds deadline) override;
  void abandon(std::chrono::nanoseconds deadline) noexcept override;
  void send(int to, const Call& call, const void* source, std::chrono::nanoseconds deadline) override;
  void recv(int from, const Call& call, void* target, std::chrono::nanoseconds deadline) override;

 private:
  struct alignas(64) Head {
    std::atomic<std::uint64_t> arrivals{0};  // of all members at all barriers
    SharedSignal signal;
  };
  struct Posted {
    std::uint64_t to : 20 = 0, pieces : 44 = 0;
  };
  static_assert(std::atomic<Posted>::is_always_lock_free);
  struct alignas(64) Slot {
    std::atomic<std::uint64_t> phase{0};  // barriers reached
    // By a collective's number; read by peers behind its first barrier.
    std::array<SharedCall, 2> calls;
    std::array<ArenaPlace, 2> sources;
    std::atomic<bool> reading{false};  // peers' memory
    // The message on its way, if any: at most one, for send() waits. In pieces, counted over all messages;
    // who they are for is told with the count, by one word, so that nobody takes another's for its own.
    std::atomic<Posted> posted{Posted{}};
    std::atomic<std::uint64_t> taken{0};
    SharedSignal signal;
    SharedCall message;
    std::uint64_t message_buffer = 0;
    Published<SharedCall> status;  // for reports at any time
  };

  static std::int64_t head_bytes(int members);
  SharedWorld::Room join(const SharedWorld::RoomWanted& wanted);
  void lay_out(const SharedWorld::Room& room) const;
  Slot& slot(int member) const { return slots_[member]; }
  std::byte* buffer(int member, std::uint64_t phase) const;
  std::int64_t piece_bytes() const { return buffer_bytes_ / 2; }
  std::int64_t pieces_of(std::int64_t bytes) const;
  std::byte* piece(int from, std::int64_t index) const;

  int own_rank() const override { return me(); }
  const void* source(int member) const override { return read_from_[member]; }
  void start_reading() override;
  void stop_reading() noexcept override { slot(me()).reading.store(false, std::memory_order_release); }
  void meet() override { barrier(deadline_); }

  std::shared_ptr<const MappedArenas> find(const void* source);
  void barrier(std::chrono::nanoseconds deadline);
  void announce(const SharedCall& call);
  std::string status_text(int member) const override;
  std::string current() const override;
  template <class Done, class IsMissing>
  void wait(SharedSignal& signal, std::chrono::nanoseconds deadline, const Done& done,
            const IsMissing& missing);

  SharedWorld::Room room_;
  Head* head_ = nullptr;
  Slot* slots_ = nullptr;
  std::byte* buffers_ = nullptr;
  SharedCall current_;                            // this rank's
  std::uint64_t phase_ = 0, sequence_ = 0;        // this rank's barriers and collectives
  bool first_exchange_ = false;                   // of the collective
  std::shared_ptr<const MappedArenas> open_;      // that it reads
  std::weak_ptr<const MappedArenas> found_;       // those of the collective before
  IdVector<const void*> read_from_;               // by member
  std::chrono::nanoseconds deadline_{};           // of a barrier between reads
  IdVector<std::uint64_t> sent_to_, taken_from_;  // messages by member
};

}  // namespace tessera::comm
