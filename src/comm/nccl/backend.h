// The `nccl` backend: what lies on GPUs. A communicator is its host's, for memory of the host, until it is
// bound to a CUDA stream; from then on its calls are NCCL's, on that stream, after the hosts have agreed on
// each.
#pragma once

#include <atomic>
#include <map>
#include <set>
#include <span>
#include <tuple>

#include "kernels/context.h"
#include "src/comm/nccl/channel.h"
#include "src/comm/nccl/world.h"
#include "tessera/id_vector.h"

namespace tessera::comm {

class NcclBackend final : public Backend {
 public:
  NcclBackend(std::shared_ptr<NcclWorld> world, std::shared_ptr<Backend> host);
  static std::shared_ptr<NcclBackend> over(const std::shared_ptr<Backend>& host, const NcclOptions& options);

  int rank() const override { return host_->rank(); }
  int world() const override { return host_->world(); }
  int global_rank() const override { return host_->global_rank(); }
  const std::string& name() const override { return host_->name(); }
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

  void meet(const Call& call) override { host_->meet(call); }
  void rethrow_failure(const std::string& call) override { host_->rethrow_failure(call); }
  std::optional<Failure> failure() const override { return host_->failure(); }
  std::vector<int> ended() const override { return host_->ended(); }
  bool reaches(DeviceType) const override { return true; }
  void bind(Stream& stream, const MostReduced& most) override;
  void connect_pair() override;
  void keep_unregistered() override {
    if (channel_) channel_->keep_unregistered();
  }
  bool reduces_natively() const override { return channel_ != nullptr || Backend::reduces_natively(); }
  bool captures() const override { return channel_ != nullptr || Backend::captures(); }
  void begin_capture() override;
  std::unique_ptr<CapturedCalls> end_capture() override;
  void replay(const CapturedCalls& calls) override;

  // An arena of the host is none of NCCL's.
  bool wants_shared_arena() const override { return false; }
  ArenaSource arena_source() override { return NcclWorld::arena_source(world_); }
  ArenaRegistration register_arena(Arena& arena) override;

  void fail(int culprit, const std::string& message) override { host_->fail(culprit, message); }
  void attach(FailureFlag flag) override;
  void set_waiting(bool waiting) override { host_->set_waiting(waiting); }
  void set_deadline(std::chrono::milliseconds deadline) override;
  std::chrono::milliseconds deadline() const override { return deadline_; }
  void set_delay(std::chrono::microseconds delay) override;
  std::int64_t bytes_received() const override;

 private:
  struct Captured final : CapturedCalls {
    std::vector<NcclCall> calls;
    std::int64_t received_bytes = 0;
  };

  // What this rank does in a collective on its stream, once all have called the same.
  template <class Work>
  void collective(const Call& call, std::int64_t received_bytes, const Work& work);
  // Within collective(): exchange(communicator) makes calls of NCCL that belong together.
  template <class Exchange>
  void group(const Exchange& exchange);
  template <class Work>
  void message(const Call& call, std::uint64_t sequence, int peer, const Work& work);
  // Sends bytes at `from`, `stride_bytes` apart for each peer, and receives as many from each at place(peer).
  // Only `senders` send.
  struct Blocks {
    const std::byte* from = nullptr;
    std::int64_t stride_bytes = 0, bytes = 0;
    Contributors senders = {};
  };
  template <class Place>
  void exchange(const Blocks& blocks, const Place& place);
  // The last number of the calls that are counted with this one.
  std::uint64_t& number_of(const NcclCall& call);
  // All members' ranks, who must ask for the same.
  void compare_members(const MostReduced& most);
  void reduce_natively(const ReduceScatter& call);
  void reduce_exactly(const ReduceScatter& call);
  void reduce_part(const ReduceScatter& call, std::int64_t begin, std::int64_t numel,
                   std::int64_t slot_bytes);
  kernels::ComputeContext on_stream() const;
  void chain(std::int64_t numel, DType type, bool accumulate, float* result);
  void copy(void* to, const void* from, std::int64_t bytes);
  std::byte* staged(int rank, std::int64_t slot_bytes) const {
    return channel_->staging() + rank * slot_bytes;
  }

  const std::shared_ptr<NcclWorld> world_;
  const std::shared_ptr<Backend> host_;
  std::chrono::milliseconds deadline_;
  std::chrono::microseconds delay_{0};
  std::atomic<std::int64_t> bytes_received_{0};

  // Since bind().
  std::int64_t received_before_ = 0;
  std::shared_ptr<Backend> meeting_;        // of the same members, for calls on the stream alone
  std::shared_ptr<Backend> first_meeting_;  // likewise, behind each group of a call that is new
  const Call* new_ = nullptr;               // the one that is made, unless its like was made before
  std::set<std::tuple<Operation, DType, std::int64_t, Contributors>> known_;  // calls that were made
  IdVector<int> global_ranks_;                                                // of the members
  std::uint64_t sequence_ = 0;                                                // collectives on the stream
  std::map<int, std::uint64_t> sent_, taken_;                                 // messages, by peer
  IdVector<const void*> contributions_;                                       // scratch of chain()
  std::unique_ptr<NcclChannel> channel_;
  std::unique_ptr<Captured> captured_;  // while calls are captured
  std::int64_t received_captured_ = 0;  // bytes_received_ when that began
};

}  // namespace tessera::comm
