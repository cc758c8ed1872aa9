// One rank's end of one NCCL communicator on one CUDA stream: enqueues NCCL's calls there, knows which are
// still in flight, and aborts all of them when the world has failed. What is exchanged is backend.cpp's
// business.
//
// NCCL runs without blocking: a call that it has not yet enqueued says ncclInProgress, and is waited for by
// asking. So every wait has a deadline and hears of failed peers, and the communicator can be aborted under
// it.
#pragma once

#include <chrono>
#include <map>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "kernels/context.h"
#include "src/comm/call.h"
#include "src/comm/nccl/library.h"
#include "src/device/cuda_handles.h"
#include "src/device/host_words.h"
#include "src/device/wait.h"

namespace tessera::comm {

class NcclParent;
class NcclWorld;

// EnvironmentError naming the call, the error, NCCL's own words and what the thread is busy with, unless it
// succeeded or is in progress.
void check_nccl(ncclResult_t result, const char* call, ncclComm_t communicator = nullptr);
// Whether NCCL has enqueued, or made, all that the communicator was asked for. Throws as check_nccl() does,
// naming `call`, where any of it failed.
bool is_done(ncclComm_t communicator, const char* call);

// A call in words: the peer is that of a message, of the world; -1 of a collective.
struct NcclCall {
  Call call;
  std::uint64_t sequence = 0;
  int peer = -1;
};

class NcclChannel {
 public:
  struct Options {
    cudaStream_t stream = nullptr;
    int ordinal = 0;           // the stream's GPU
    std::vector<int> members;  // of the world
    std::int64_t staging_bytes = 0;
    std::chrono::nanoseconds deadline{};
  };
  // Collective over the members of `host`: split from the communicator of these ranks, which the first of
  // their channels makes, by a unique id that `host` brings from the first of them to all.
  NcclChannel(NcclWorld& world, std::shared_ptr<Backend> host, const Options& options);
  // Waits for what is in flight here, unless the world failed, at most the deadline, and for no peer. What
  // NCCL or the GPU is not done with by then keeps its memory, to which the GPU may still write. That is told
  // as the rank's failure.
  ~NcclChannel();
  NcclChannel(const NcclChannel&) = delete;
  NcclChannel& operator=(const NcclChannel&) = delete;

  cudaStream_t stream() const { return options_.stream; }
  int ordinal() const { return options_.ordinal; }
  std::byte* staging() const { return static_cast<std::byte*>(staging_); }
  std::int64_t staging_bytes() const { return options_.staging_bytes; }
  void set_deadline(std::chrono::nanoseconds deadline);
  std::chrono::nanoseconds deadline() const;

  // In arena.cpp. Registers this memory and its own staging memory with NCCL, until release_memory() or
  // its end: all that calls are given lies in these then. Nothing is in flight. EnvironmentError where NCCL
  // refuses; part of it may then be registered.
  void register_memory(void* memory, std::int64_t bytes);
  void release_memory(const void* memory) noexcept;
  // For messages, before which hosts do not meet: NCCL would map registered memory by the peer's driver at
  // the first, and that may let nobody in until the message comes. Also for calls with memory that lies
  // elsewhere.
  void keep_unregistered() { unregistered_ = true; }

  // work() enqueues all of the call on the stream; the call is in flight from then on, also where it throws:
  // part of it may have been enqueued.
  template <class Work>
  void issue(const NcclCall& call, const Work& work) {
    begin(call);
    const Issue issue{*this};
    work();
  }
  // Within issue(): exchange(communicator) makes calls of NCCL that belong together.
  template <class Exchange>
  void group(const Exchange& exchange) {
    {
      const std::lock_guard lock(mutex_);
      check_alive();
      check_nccl(nccl().ncclGroupStart(), "ncclGroupStart");
      const GroupEnd group_end{communicator_};
      exchange(communicator_);
    }
    settle();
  }

  // Calls that are issued from here to end_capture() are captured with the stream: they are listed in
  // `calls`, and not in flight. replay() has them all in flight, in order, just before they are launched.
  void begin_capture(std::vector<NcclCall>& calls);
  void end_capture();
  void replay(std::span<const NcclCall> calls);

  // ---- from the watch's thread ----

  // Throws CommunicationError where NCCL reports an error, or a call has been running for longer than the
  // deadline.
  void look();
  // The communicator, the caller's to give back; null where it was taken. The channel is of no use any more.
  ncclComm_t take() noexcept;
  // The oldest call in flight in words; empty where there is none.
  std::string oldest();

 private:
  // Ends the group whatever happens in it, so that the thread's next call does not join it.
  struct GroupEnd {
    ncclComm_t communicator;
    ~GroupEnd() noexcept(false);
    int exceptions = std::uncaught_exceptions();
  };
  struct Issue {
    NcclChannel& channel;
    ~Issue() noexcept(false);
    int exceptions = std::uncaught_exceptions();
  };
  // In flight: the stream has not landed it.
  struct Flight {
    NcclCall call;
    std::uint32_t ticket = 0;
    std::optional<device::Patience> left;  // since it was seen to have begun
  };

  void take_staging();
  void connect();
  void give_back(bool ended) noexcept;  // whether NCCL is done with it
  kernels::ComputeContext on_stream() const;
  void begin(const NcclCall& call);
  void end();
  // Until NCCL has enqueued what it was given.
  void settle();
  // Until done(); meanwhile hears of failed peers, and reports current_ at the deadline.
  template <class Done>
  void settle(const Done& done);
  // These four with the lock held.
  void check_alive() const;
  void forget_landed();
  void make_room(std::size_t flights);  // for so many; none is in flight
  Flight& flight(std::size_t place) { return flights_[(oldest_ + place) % flights_.size()]; }
  const Flight& flight(std::size_t place) const { return flights_[(oldest_ + place) % flights_.size()]; }

  // Of the GPU, not ready where its work is not done. From the rank's own thread.
  cudaError_t ask_gpu() const;

  std::string text(const NcclCall& call) const;
  [[noreturn]] void report(int culprit, const std::string& message);
  [[noreturn]] void report_late(const NcclCall& call);
  // Whether all in flight has landed here, by the deadline; ask() is called now and then, and may throw.
  template <class Ask>
  bool landed(const Ask& ask) noexcept;
  void end_registrations() noexcept;

  NcclWorld& world_;
  const std::shared_ptr<Backend> host_;
  const Options options_;
  void* staging_ = nullptr;
  bool staging_of_nccl_ = false;  // taken by ncclMemAlloc
  bool unregistered_ = false;     // registers nothing
  // Of the issuing thread.
  NcclCall current_;
  std::uint32_t ticket_ = 0;                   // of the last call, counting on from 2^32 − 1 to 0
  device::CudaEvent last_;                     // behind it
  std::vector<NcclCall>* captured_ = nullptr;  // where calls are listed that are captured

  // The tickets that the stream has come to, and those that it is done with. The watch looks there and never
  // asks the driver, which may let no call in before the GPU is idle: it could not end what keeps it busy.
  const std::shared_ptr<device::HostWords> words_;
  std::shared_ptr<device::HostWords::Word> begun_, landed_;
  std::shared_ptr<device::HostWords::Word> spare_;  // for a kernel that has to be loaded before a capture

  mutable std::mutex mutex_;  // guards the rest, and every use of the communicator
  std::chrono::nanoseconds deadline_;
  ncclComm_t communicator_ = nullptr;
  std::multimap<const void*, void*> registered_;  // NCCL's handles, by the memory they were made with
  bool aborted_ = false;
  std::vector<Flight> flights_;  // a ring
  std::size_t oldest_ = 0, in_flight_ = 0;
};

}  // namespace tessera::comm
