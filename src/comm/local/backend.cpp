#include "src/comm/local/backend.h"

#include <algorithm>
#include <numeric>

#include "src/device/wait.h"
#include "tessera/id_vector.h"

namespace tessera::comm {

LocalBackend::LocalBackend(std::shared_ptr<LocalWorld> world, std::shared_ptr<LocalGroup> group, int rank,
                           std::shared_ptr<LocalPresence> presence)
    : Puller(group->members()),
      world_(std::move(world)),
      group_(std::move(group)),
      rank_(rank),
      presence_(std::move(presence)),
      deadline_(world_->options().deadline),
      delay_(world_->options().delay) {}

std::shared_ptr<Backend> LocalBackend::subgroup(const std::vector<int>& ranks, const std::string& name) {
  std::vector<int> global(ranks.size());
  std::transform(ranks.begin(), ranks.end(), global.begin(),
                 [&](int rank) { return group_->global_rank(rank); });
  const auto own = std::find(ranks.begin(), ranks.end(), rank_);
  auto made =
      std::make_shared<LocalBackend>(world_, world_->join_group(group_.get(), global, name, global_rank()),
                                     static_cast<int>(own - ranks.begin()), presence_);
  made->deadline_ = deadline_;
  made->delay_ = delay_;
  return made;
}

template <class Pull>
void LocalBackend::collective(const Call& call, const void* source, const Pull& pull) {
  device::sleep_exactly(delay_);
  group_->collective(rank_, call, source, deadline_, [&] { count(pull()); });
}

void LocalBackend::all_gather(const void* shard, void* full, std::int64_t shard_bytes, CallLabel label) {
  char* own = at(full, rank_ * shard_bytes);
  if (own != shard) kernels::copy(own, shard, shard_bytes);
  collective(Call::make(Operation::all_gather, shard_bytes, label), shard,
             [&] { return pull_all_gather(full, shard_bytes); });
}

void LocalBackend::reduce_scatter(const ReduceScatter& request, CallLabel label) {
  collective(Call::reduce_scatter(request, world(), label), request.full,
             [&] { return pull_reduce_scatter(request); });
}

void LocalBackend::all_reduce(float* data, std::int64_t numel, CallLabel label) {
  collective(Call::make(Operation::all_reduce_fp32, numel, label), data,
             [&] { return pull_all_reduce(data, numel); });
}

void LocalBackend::all_reduce(double* data, std::int64_t numel, CallLabel label) {
  collective(Call::make(Operation::all_reduce_fp64, numel, label), data,
             [&] { return pull_all_reduce(data, numel); });
}

void LocalBackend::broadcast(void* data, std::int64_t bytes, int root, CallLabel label) {
  Call call = Call::make(Operation::broadcast, bytes, label);
  call.root = root;
  collective(call, data, [&] { return pull_broadcast(data, bytes, root); });
}

void LocalBackend::all_to_all(const void* input, void* output, std::int64_t block_bytes, CallLabel label) {
  kernels::copy(at(output, rank_ * block_bytes), at(input, rank_ * block_bytes), block_bytes);
  collective(Call::make(Operation::all_to_all, block_bytes, label), input,
             [&] { return pull_all_to_all(output, block_bytes); });
}

void LocalBackend::barrier(CallLabel label) { meet(Call::make(Operation::barrier, 0, label)); }

void LocalBackend::meet(const Call& call) {
  collective(call, nullptr, [] { return std::int64_t{0}; });
}

void LocalBackend::send(const void* data, std::int64_t bytes, int to, CallLabel label) {
  device::sleep_exactly(delay_);
  group_->send(rank_, to, Call::make(Operation::send, bytes, label), data, deadline_);
}

void LocalBackend::recv(void* data, std::int64_t bytes, int from, CallLabel label) {
  device::sleep_exactly(delay_);
  group_->recv(rank_, from, Call::make(Operation::recv, bytes, label), data, deadline_);
  count(bytes);
}

std::optional<Failure> LocalBackend::failure() const { return group_->world().first_failure(); }

std::vector<int> LocalBackend::ended() const {
  const LocalWorld& world = group_->world();
  std::vector<int> ranks;
  for (int rank = 0; world.any_ended() && rank < world.ranks(); ++rank)
    if (world.ended(rank)) ranks.push_back(rank);
  return ranks;
}

void LocalBackend::rethrow_failure(const std::string& call) {
  if (world_->failed()) world_->throw_failed(global_rank(), call);
}

void LocalBackend::fail(int culprit, const std::string& message) {
  world_->fail(global_rank(), culprit, message);
}

void LocalBackend::attach(FailureFlag flag) {
  flag.on_failure([weak = std::weak_ptr(world_), rank = global_rank()](const std::string& message) {
    if (const auto world = weak.lock()) world->fail(rank, rank, message);
  });
}

std::vector<Communicator> communicators_of(const std::shared_ptr<LocalWorld>& world, Ends ends) {
  IdVector<int> ranks(world->ranks());
  std::iota(ranks.begin(), ranks.end(), 0);
  std::vector<Communicator> communicators;
  communicators.reserve(ranks.size());
  for (int rank : ranks)
    communicators.emplace_back(std::make_shared<LocalBackend>(
        world, world->join_group(nullptr, ranks, "world", rank), rank,
        ends == Ends::with_communicators ? std::make_shared<LocalPresence>(world, rank) : nullptr));
  return communicators;
}

}  // namespace tessera::comm
