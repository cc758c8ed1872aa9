// What one rank's communicators between GPUs share: a thread that watches what they have in flight and
// whether a peer has failed, and then ends all of it.
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
#include "src/comm/nccl_parent.h"

namespace tessera::comm {

class NcclChannel;

class NcclWorld {
 public:
  NcclWorld(std::shared_ptr<Backend> host, const NcclOptions& options);
  ~NcclWorld();
  NcclWorld(const NcclWorld&) = delete;
  NcclWorld& operator=(const NcclWorld&) = delete;

  const NcclOptions& options() const { return options_; }
  // Set when the world fails: what waits for the GPU ends then.
  void attach(FailureFlag flag);
  void watch(NcclChannel& channel);
  void forget(NcclChannel& channel) noexcept;

  // What communicators of these ranks, of the world and ascending, are split from; made by who asks first.
  NcclParent& parent(const std::vector<int>& ranks) { return parents_[ranks]; }

  // Memory that NCCL can register in every way it has. What it refuses is asked of the runtime, and noted.
  static ArenaSource arena_source(const std::shared_ptr<NcclWorld>& world);
  const std::string& arena_note() const { return arena_note_; }
  // Registers memory with the communicators in use. EnvironmentError where NCCL refuses; it may then be
  // registered with some, until it is released.
  void register_memory(void* memory, std::int64_t bytes);
  void release_memory(const void* memory) noexcept;

 private:
  void run();
  // Throws where something failed.
  void look();

  const std::shared_ptr<Backend> host_;
  const NcclOptions options_;
  std::mutex mutex_;  // guards the rest
  std::condition_variable changed_;
  std::vector<NcclChannel*> channels_;
  std::vector<FailureFlag> flags_;
  std::optional<std::chrono::steady_clock::time_point> peer_failed_;  // first seen
  bool ended_ = false;
  std::thread thread_;  // since the first channel

  // Of the rank's own thread.
  std::map<std::vector<int>, NcclParent> parents_;
  std::string arena_note_;
};

}  // namespace tessera::comm
