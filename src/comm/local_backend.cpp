#include "src/comm/local_backend.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <span>
#include <thread>
#include <type_traits>

#include "src/comm/ordered_chain.h"

namespace tessera::comm {
namespace {

const char* at(const void* base, std::int64_t bytes) { return static_cast<const char*>(base) + bytes; }
char* at(void* base, std::int64_t bytes) { return static_cast<char*>(base) + bytes; }

void sum_into(std::span<const void*> contributions, std::int64_t numel, float* result) {
  ordered_chain(contributions, DType::fp32, numel, false, result);
}
void sum_into(std::span<const void*> contributions, std::int64_t numel, double* result) {
  ordered_chain(contributions, numel, result);
}

}  // namespace

LocalBackend::LocalBackend(std::shared_ptr<LocalWorld> world, std::shared_ptr<LocalGroup> group, int rank)
    : world_(std::move(world)),
      group_(std::move(group)),
      rank_(rank),
      deadline_(world_->options().deadline),
      delay_(world_->options().delay),
      sources_(static_cast<std::size_t>(group_->members())) {}

std::shared_ptr<Backend> LocalBackend::subgroup(const std::vector<int>& ranks, const std::string& name) {
  std::vector<int> global(ranks.size());
  std::transform(ranks.begin(), ranks.end(), global.begin(),
                 [&](int rank) { return group_->global_rank(rank); });
  const auto own = std::find(ranks.begin(), ranks.end(), rank_);
  auto made =
      std::make_shared<LocalBackend>(world_, world_->join_group(group_.get(), global, name, global_rank()),
                                     static_cast<int>(own - ranks.begin()));
  made->deadline_ = deadline_;
  made->delay_ = delay_;
  return made;
}

template <class Copies>
void LocalBackend::collective(const LocalCall& call, const void* source, const Copies& copies) {
  if (delay_.count() > 0) std::this_thread::sleep_for(delay_);
  group_->collective(rank_, call, source, deadline_, copies);
}

template <class Copy>
void LocalBackend::pull(const Copy& copy) {
  group_->read(rank_, [&] {
    for (int step = 1; step < world(); ++step) copy((rank_ + step) % world());
  });
}

std::span<const void*> LocalBackend::sources(std::int64_t offset_bytes) {
  for (int member = 0; member < world(); ++member)
    sources_[static_cast<std::size_t>(member)] = at(group_->source(member), offset_bytes);
  return sources_;
}

void LocalBackend::all_gather(const void* shard, void* full, std::int64_t shard_bytes, CallLabel label) {
  char* own = at(full, rank_ * shard_bytes);
  if (own != shard) copy_bytes(own, shard, shard_bytes);
  collective(LocalCall::make(Operation::all_gather, shard_bytes, label), shard, [&] {
    pull([&](int peer) { copy_bytes(at(full, peer * shard_bytes), group_->source(peer), shard_bytes); });
    count((world() - 1) * shard_bytes);
  });
}

void LocalBackend::reduce_scatter(const ReduceScatter& request, CallLabel label) {
  LocalCall call = LocalCall::make(Operation::reduce_scatter, request.shard_numel, label);
  call.type = request.wire;
  const std::int64_t slice_bytes = request.shard_numel * bytes_of(request.wire);
  collective(call, request.full, [&] {
    group_->read(rank_, [&] {
      ordered_chain(sources(rank_ * slice_bytes), request.wire, request.shard_numel, request.accumulate,
                    request.shard);
    });
    count((world() - 1) * slice_bytes);
  });
}

// Each rank sums its slice in place, which no peer reads then, and pulls the other slices when all have
// summed.
template <class Element>
void LocalBackend::reduce_everywhere(const LocalCall& call, Element* data, std::int64_t numel) {
  constexpr std::int64_t kAlignNumel = 64 / static_cast<std::int64_t>(sizeof(Element));
  const std::int64_t even = (numel + world() - 1) / world();
  const std::int64_t slice = (even + kAlignNumel - 1) / kAlignNumel * kAlignNumel;
  const auto begin_of = [&](int member) { return std::min(numel, member * slice); };
  const auto bytes_of_slice = [&](int member) {
    return (begin_of(member + 1) - begin_of(member)) * static_cast<std::int64_t>(sizeof(Element));
  };
  collective(call, data, [&] {
    const std::int64_t begin = begin_of(rank_), own_bytes = bytes_of_slice(rank_);
    if (own_bytes > 0)
      group_->read(rank_, [&] {
        sum_into(sources(begin * static_cast<std::int64_t>(sizeof(Element))), begin_of(rank_ + 1) - begin,
                 data + begin);
      });
    group_->barrier(rank_, deadline_);
    pull([&](int peer) {
      copy_bytes(data + begin_of(peer), static_cast<const Element*>(group_->source(peer)) + begin_of(peer),
                 bytes_of_slice(peer));
    });
    count((world() - 1) * own_bytes + numel * static_cast<std::int64_t>(sizeof(Element)) - own_bytes);
  });
}

void LocalBackend::all_reduce(float* data, std::int64_t numel, CallLabel label) {
  reduce_everywhere(LocalCall::make(Operation::all_reduce_fp32, numel, label), data, numel);
}

void LocalBackend::all_reduce(double* data, std::int64_t numel, CallLabel label) {
  reduce_everywhere(LocalCall::make(Operation::all_reduce_fp64, numel, label), data, numel);
}

void LocalBackend::broadcast(void* data, std::int64_t bytes, int root, CallLabel label) {
  LocalCall call = LocalCall::make(Operation::broadcast, bytes, label);
  call.root = root;
  collective(call, data, [&] {
    if (rank_ == root) return;
    group_->read(rank_, [&] { copy_bytes(data, group_->source(root), bytes); });
    count(bytes);
  });
}

void LocalBackend::all_to_all(const void* input, void* output, std::int64_t block_bytes, CallLabel label) {
  copy_bytes(at(output, rank_ * block_bytes), at(input, rank_ * block_bytes), block_bytes);
  collective(LocalCall::make(Operation::all_to_all, block_bytes, label), input, [&] {
    pull([&](int peer) {
      copy_bytes(at(output, peer * block_bytes), at(group_->source(peer), rank_ * block_bytes), block_bytes);
    });
    count((world() - 1) * block_bytes);
  });
}

void LocalBackend::barrier(CallLabel label) {
  collective(LocalCall::make(Operation::barrier, 0, label), nullptr, [] {});
}

void LocalBackend::send(const void* data, std::int64_t bytes, int to, CallLabel label) {
  if (delay_.count() > 0) std::this_thread::sleep_for(delay_);
  group_->send(rank_, to, LocalCall::make(Operation::send, bytes, label), data, deadline_);
}

void LocalBackend::recv(void* data, std::int64_t bytes, int from, CallLabel label) {
  if (delay_.count() > 0) std::this_thread::sleep_for(delay_);
  group_->recv(rank_, from, LocalCall::make(Operation::recv, bytes, label), data, deadline_);
  count(bytes);
}

void LocalBackend::fail(const std::string& message) { world_->fail(global_rank(), global_rank(), message); }

void LocalBackend::attach(FailureFlag flag) {
  flag.on_failure([weak = std::weak_ptr(world_), rank = global_rank()](const std::string& message) {
    if (const auto world = weak.lock()) world->fail(rank, rank, message);
  });
}

std::vector<Communicator> communicators_of(const std::shared_ptr<LocalWorld>& world) {
  std::vector<int> ranks(static_cast<std::size_t>(world->ranks()));
  std::iota(ranks.begin(), ranks.end(), 0);
  std::vector<Communicator> communicators;
  for (int rank : ranks)
    communicators.emplace_back(
        std::make_shared<LocalBackend>(world, world->join_group(nullptr, ranks, "world", rank), rank));
  return communicators;
}

}  // namespace tessera::comm
