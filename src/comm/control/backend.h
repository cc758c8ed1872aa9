// The `control` backend: ranks are processes that a launcher started without MPI; what they exchange goes
// over a connection from each to rank 0, large calls in pieces. For rendezvous, decisions and failures, and
// for NCCL's set-up: small things.
#pragma once

#include <atomic>
#include <functional>
#include <map>

#include "src/comm/backend.h"
#include "src/comm/control/world.h"
#include "tessera/id_vector.h"

namespace tessera::comm {

class ControlBackend final : public Backend {
 public:
  ControlBackend(std::shared_ptr<ControlWorld> world, std::uint64_t parent, IdVector<int> global_ranks,
                 std::string name);

  int rank() const override { return me_; }
  int world() const override { return global_ranks_.count(); }
  int global_rank() const override { return world_->rank(); }
  const std::string& name() const override { return name_; }
  std::shared_ptr<Backend> subgroup(const std::vector<int>& ranks, const std::string& name) override;

  void all_gather(const void* shard, void* full, std::int64_t shard_bytes, CallLabel label) override;
  void reduce_scatter(const ReduceScatter& call, CallLabel label) override;
  void all_reduce(float* data, std::int64_t numel, CallLabel label) override;
  void all_reduce(double* data, std::int64_t numel, CallLabel label) override;
  void broadcast(void* data, std::int64_t bytes, int root, CallLabel label) override;
  void all_to_all(const void* input, void* output, std::int64_t block_bytes, CallLabel label) override;
  void barrier(CallLabel label) override { meet(Call::make(Operation::barrier, 0, label)); }
  void send(const void* data, std::int64_t bytes, int to, CallLabel label) override;
  void recv(void* data, std::int64_t bytes, int from, CallLabel label) override;

  void meet(const Call& call) override { collective(call, {}); }
  void rethrow_failure(const std::string& call) override { world_->rethrow_failure(call); }
  std::optional<Failure> failure() const override { return world_->failure(); }
  std::vector<int> ended() const override { return world_->ended(); }

  bool wants_shared_arena() const override { return false; }
  ArenaRegistration register_arena(Arena&) override {
    return {.direct = false, .reason = "ranks exchange by control connections"};
  }

  void fail(int culprit, const std::string& message) override { world_->fail(culprit, message); }
  void attach(FailureFlag flag) override;
  void set_deadline(std::chrono::milliseconds deadline) override { deadline_ = deadline; }
  std::chrono::milliseconds deadline() const override { return deadline_; }
  void set_delay(std::chrono::microseconds delay) override { delay_ = delay; }
  std::int64_t bytes_received() const override { return bytes_received_.load(); }

 private:
  struct Range {
    std::int64_t begin = 0, count = 0;
  };
  // What a call moves, and how it is cut.
  struct Content {
    std::int64_t numel = 0;       // elements, or bytes
    std::int64_t each_bytes = 1;  // the most that one of these takes in a frame
    // What this rank brings to a piece, valid until it is asked for the next; none: nothing.
    std::function<std::span<const char>(const Range&)> bring = {};
    // What all members brought, in their order; none: no use is made of it.
    std::function<void(const Range&, const std::vector<char>& all)> take = {};
  };
  void collective(const Call& call, const Content& content) { exchange(call, ++sequence_, -1, content); }
  void exchange(const Call& call, std::uint64_t sequence, int peer, const Content& content);
  template <class Element>
  void reduce(const Call& call, Element* data, std::int64_t numel);

  const std::shared_ptr<ControlWorld> world_;
  const IdVector<int> global_ranks_;
  const std::string name_;
  const int me_;
  const std::uint64_t key_;
  std::chrono::milliseconds deadline_;
  std::chrono::microseconds delay_;
  std::uint64_t sequence_ = 0;
  std::map<int, std::uint64_t> sent_, taken_;  // messages, by peer
  std::atomic<std::int64_t> bytes_received_{0};
};

}  // namespace tessera::comm
