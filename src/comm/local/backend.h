// The `local` backend: ranks are threads, and pull what they need from each other's memory.
#pragma once

#include "src/comm/local/group.h"

namespace tessera::comm {

class LocalBackend final : public Backend, private Puller {
 public:
  // `presence` may be null: then who made the world says when its ranks have ended.
  LocalBackend(std::shared_ptr<LocalWorld> world, std::shared_ptr<LocalGroup> group, int rank,
               std::shared_ptr<LocalPresence> presence);

  int rank() const override { return rank_; }
  int world() const override { return group_->members(); }
  int global_rank() const override { return group_->global_rank(rank_); }
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

  // Threads read each other's memory as it is.
  bool wants_shared_arena() const override { return false; }
  ArenaRegistration register_arena(Arena&) override { return {.direct = true}; }

  void meet(const Call& call) override;
  void rethrow_failure(const std::string& call) override;
  std::optional<Failure> failure() const override;
  std::vector<int> ended() const override;
  void fail(int culprit, const std::string& message) override;
  void attach(FailureFlag flag) override;
  void set_waiting(bool waiting) override {
    world_->set_state(global_rank(), waiting ? RankState::waiting : RankState::working);
  }
  void set_deadline(std::chrono::milliseconds deadline) override { deadline_ = deadline; }
  std::chrono::milliseconds deadline() const override { return deadline_; }
  void set_delay(std::chrono::microseconds delay) override { delay_ = delay; }
  std::int64_t bytes_received() const override { return bytes_received_.load(std::memory_order_relaxed); }

 private:
  int own_rank() const override { return rank_; }
  const void* source(int rank) const override { return group_->source(rank); }
  void start_reading() override { group_->start_reading(rank_); }
  void stop_reading() noexcept override { group_->stop_reading(rank_); }
  void meet() override { group_->barrier(rank_, deadline_); }

  // pull() returns the bytes that it received.
  template <class Pull>
  void collective(const Call& call, const void* source, const Pull& pull);
  void count(std::int64_t bytes) { bytes_received_.fetch_add(bytes, std::memory_order_relaxed); }

  const std::shared_ptr<LocalWorld> world_;
  const std::shared_ptr<LocalGroup> group_;
  const int rank_;
  const std::shared_ptr<LocalPresence> presence_;
  std::chrono::milliseconds deadline_;
  std::chrono::nanoseconds delay_;
  std::atomic<std::int64_t> bytes_received_{0};
};

enum class Ends { with_communicators, as_told };  // a rank: by its LocalPresence, or by LocalWorld::end()

// The communicator of every rank of `world`.
std::vector<Communicator> communicators_of(const std::shared_ptr<LocalWorld>& world, Ends ends);

}  // namespace tessera::comm
