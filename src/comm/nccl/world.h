// What one rank's communicators between GPUs share: a thread that watches what they have in flight and
// whether a peer has failed, and then ends all of it; and how they are given back.
#pragma once

#include <chrono>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "src/comm/backend.h"
#include "src/comm/nccl/parent.h"
#include "tessera/device.h"

namespace tessera::comm {

class NcclChannel;

class NcclWorld {
 public:
  NcclWorld(std::shared_ptr<Backend> host, const NcclOptions& options);
  // Waits for what NCCL is given back, at most the deadline. Tells nobody.
  ~NcclWorld();
  NcclWorld(const NcclWorld&) = delete;
  NcclWorld& operator=(const NcclWorld&) = delete;

  const NcclOptions& options() const { return options_; }
  // Set when the world fails: what waits for the GPU ends then.
  void attach(FailureFlag flag);
  void watch(NcclChannel& channel);
  // Not watched any more; gives its communicator back when none of this rank's is in use, for NCCL waits for
  // all that the GPU does. At once where something is still in flight on it: where the world failed, with all
  // others. Whether NCCL is done, by the deadline, with what it was given back.
  bool forget(NcclChannel& channel, bool drained) noexcept;
  // Staging memory of a channel whose calls have ended. It is given back when none of the rank's
  // communicators is in use, because the runtime may wait for all that the GPU does.
  struct Staging {
    void* memory = nullptr;
    std::int64_t bytes = 0;
    bool of_nccl = false;  // taken by ncclMemAlloc
  };
  void give_back(const Staging& staging) noexcept;
  // Tells the rank that staging memory is not given back: `why` has lasted for `deadline`.
  void leave(std::int64_t bytes, const char* why, std::chrono::nanoseconds deadline) noexcept;

  // A call of one of the rank's communicators: by one thread at a time, as NCCL starts all kernels of a GPU
  // in the order of its calls and refuses threads that race for it. UsageError where another thread is in
  // one; `what` is the call that is refused, in words.
  class Turn {
   public:
    template <class What>
    Turn(NcclWorld& world, const What& what) : world_(world) {
      if (world.called_.exchange(true)) world.refuse_turn(what());
    }
    ~Turn() { world_.called_.store(false); }
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;

   private:
    NcclWorld& world_;
  };

  // What communicators of these ranks, of the world and ascending, are split from; made by who asks first.
  NcclParent& parent(const std::vector<int>& ranks) { return parents_[ranks]; }
  // One that failed; given back with the channel that asked for it.
  void drop(NcclParent& parent);

  // Memory that NCCL can register in every way it has. What it refuses is asked of the runtime, and noted.
  static ArenaSource arena_source(const std::shared_ptr<NcclWorld>& world);
  const std::string& arena_note() const { return arena_note_; }
  // Registers memory with the communicators in use. EnvironmentError where NCCL refuses; it may then be
  // registered with some, until it is released.
  void register_memory(void* memory, std::int64_t bytes);
  void release_memory(const void* memory) noexcept;

 private:
  [[noreturn]] void refuse_turn(const std::string& what) const;
  void run();
  // Throws where something failed. With the lock held.
  void look();
  // Tells the rank, then ends all that its channels have.
  void end_all(std::unique_lock<std::mutex>& lock, const std::exception_ptr& cause);
  void end_taken();                             // with the lock held
  std::exception_ptr failure() const noexcept;  // of the world
  bool wait_for_ends(std::chrono::nanoseconds deadline) noexcept;
  void free_staging() noexcept;

  const std::shared_ptr<Backend> host_;
  const NcclOptions options_;
  std::atomic<bool> called_{false};
  std::mutex mutex_;  // guards the rest
  std::condition_variable changed_;
  std::vector<NcclChannel*> channels_;
  std::vector<FailureFlag> flags_;
  std::optional<std::chrono::steady_clock::time_point> peer_failed_;  // first seen
  bool ended_ = false;
  bool aborted_ = false;  // by end_all()
  int ordinal_ = 0;       // the rank's GPU
  std::vector<NcclHandle> taken_;
  std::vector<NcclEnd> ends_;
  std::vector<Staging> staging_;  // to be given back
  std::thread thread_;            // since the first channel

  // Of the rank's own thread.
  std::map<std::vector<int>, NcclParent> parents_;
  std::string arena_note_;
};

}  // namespace tessera::comm
