// Collectives of ranks that are processes, which stage what their peers need, exchange, and pull.
#pragma once

#include <span>

#include "src/comm/puller.h"
#include "src/comm/staged/group.h"
#include "tessera/id_vector.h"

namespace tessera::comm {

class StagedBackend final : public Backend {
 public:
  explicit StagedBackend(std::unique_ptr<StagedGroup> group);

  int rank() const override { return group_->me(); }
  int world() const override { return group_->members(); }
  int global_rank() const override { return group_->global_rank(rank()); }
  const std::string& name() const override { return group_->name(); }
  std::shared_ptr<Backend> subgroup(const std::vector<int>& ranks, const std::string& name) override;

  void all_gather(const void* shard, void* full, std::int64_t shard_bytes, CallLabel label) override;
  void reduce_scatter(const ReduceScatter& call, CallLabel label) override;
  void all_reduce(float* data, std::int64_t numel, CallLabel label) override;
  void all_reduce(double* data, std::int64_t numel, CallLabel label) override;
  void broadcast(void* data, std::int64_t bytes, int root, CallLabel label) override;
  void all_to_all(const void* input, void* output, std::int64_t block_bytes, CallLabel label) override;
  void barrier(CallLabel label) override;
  void send(const void* data, std::int64_t bytes, int to, CallLabel label) override;
  void recv(void* data, std::int64_t bytes, int from, CallLabel label) override;

  bool wants_shared_arena() const override;
  ArenaRegistration register_arena(Arena& arena) override;

  void meet(const Call& call) override;
  void rethrow_failure(const std::string& call) override;
  std::optional<Failure> failure() const override;
  std::vector<int> ended() const override;
  void fail(int culprit, const std::string& message) override;
  void attach(FailureFlag flag) override;
  void set_waiting(bool waiting) override;
  void set_deadline(std::chrono::milliseconds deadline) override { deadline_ = deadline; }
  std::chrono::milliseconds deadline() const override { return deadline_; }
  void set_delay(std::chrono::microseconds delay) override { delay_ = delay; }
  std::int64_t bytes_received() const override { return bytes_received_.load(std::memory_order_relaxed); }

 private:
  // A part of what a collective moves that fits the staging buffers, in its units (bytes, elements).
  struct Part {
    std::int64_t begin = 0, count = 0;
  };
  // How a call is cut into parts, and who needs what of a part. At most one of stride_bytes, slices and root.
  struct Parts {
    std::int64_t total = 0, step = 0;  // in the call's units, each of `width` bytes
    std::int64_t width = 1;
    std::int64_t stride_bytes = 0;   // each peer has its own bytes, so far apart
    int slices = 1;                  // each peer needs its slice of one range
    int root = -1;                   // only this rank shows something
    Contributors contributors = {};  // only these do

    Traffic traffic(const Part& part) const;
  };
  // A collective: begin(), then pulled() where it is of many bytes, and in_parts() unless that was true.
  void begin(const Call& call);
  // Where all can read each other's `source`: pull(peers), which returns the bytes received. Else false.
  // `bytes` is what each peer needs of it.
  template <class Pull>
  bool pulled(const void* source, std::int64_t bytes, const Pull& pull);
  // For each part: stage(part), an exchange, take(part).
  template <class Stage, class Take>
  void in_parts(const Parts& parts, const Stage& stage, const Take& take);
  template <class Copy>
  void each_peer(const Copy& copy) const;
  // What each peer has for this rank at byte `offset` of its buffer, and `own` for this rank itself.
  std::span<const void*> contributions(std::int64_t offset_bytes, const void* own);
  // Bytes of each peer's part of a staging buffer.
  std::int64_t lane_bytes() const { return group_->buffer_bytes() / world() / 64 * 64; }
  template <class Element>
  void reduce_everywhere(const Call& call, Element* data, std::int64_t numel);
  void count(std::int64_t bytes) { bytes_received_.fetch_add(bytes, std::memory_order_relaxed); }
  void delay() const;

  const std::unique_ptr<StagedGroup> group_;
  std::chrono::milliseconds deadline_;
  std::chrono::nanoseconds delay_;
  IdVector<const void*> contributions_;  // scratch of contributions()
  std::atomic<std::int64_t> bytes_received_{0};
};

// The communicator of this process in `world`.
Communicator communicator_of(const std::shared_ptr<StagedWorld>& world);

}  // namespace tessera::comm
