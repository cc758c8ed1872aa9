#include "src/comm/staged/backend.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>
#include <numeric>

#include "src/comm/ordered_chain.h"
#include "src/device/wait.h"

namespace tessera::comm {
namespace {

// Below this many bytes over all ranks, every rank sums everything: one barrier instead of two.
constexpr std::int64_t kSumEverywhereBytes = 16 * 1024;

}  // namespace

StagedBackend::StagedBackend(std::unique_ptr<StagedGroup> group)
    : group_(std::move(group)),
      deadline_(group_->world()->options().deadline),
      delay_(group_->world()->options().delay),
      contributions_(group_->members()) {}

std::shared_ptr<Backend> StagedBackend::subgroup(const std::vector<int>& ranks, const std::string& name) {
  std::vector<int> global(ranks.size());
  std::transform(ranks.begin(), ranks.end(), global.begin(),
                 [&](int rank) { return group_->global_rank(rank); });
  const auto own = std::find(ranks.begin(), ranks.end(), rank());
  auto made = std::make_shared<StagedBackend>(StagedGroup::make({.world = group_->world(),
                                                                 .parent = group_->key(),
                                                                 .global_ranks = global,
                                                                 .me = static_cast<int>(own - ranks.begin()),
                                                                 .name = name}));
  made->deadline_ = deadline_;
  made->delay_ = delay_;
  return made;
}

Traffic StagedBackend::Parts::traffic(const Part& part) const {
  const std::int64_t bytes = part.count * width;
  if (stride_bytes > 0)
    return {.bytes = bytes,
            .stride_bytes = stride_bytes,
            .total_bytes = std::numeric_limits<std::int64_t>::max(),
            .contributors = contributors};
  if (slices > 1) {
    const std::int64_t slice_bytes = Slices(part.count, slices).longest * width;
    return {.bytes = slice_bytes, .stride_bytes = slice_bytes, .total_bytes = bytes};
  }
  return {.bytes = bytes, .total_bytes = bytes, .root = root};
}

void StagedBackend::delay() const { device::sleep_exactly(delay_); }

void StagedBackend::begin(const Call& call) {
  delay();
  group_->begin(call);
}

template <class Pull>
bool StagedBackend::pulled(const void* source, std::int64_t bytes, const Pull& pull) {
  if (world() == 1) return false;
  try {
    Puller* const peers = group_->open(source, bytes, deadline_);
    if (peers == nullptr) return false;
    count(pull(*peers));
    group_->close(deadline_);
    return true;
  } catch (...) {
    group_->abandon(deadline_);
    throw;
  }
}

template <class Stage, class Take>
void StagedBackend::in_parts(const Parts& parts, const Stage& stage, const Take& take) {
  Part part;
  do {
    part.count = std::min(parts.step, parts.total - part.begin);
    if (world() > 1) stage(part);
    group_->exchange(parts.traffic(part), deadline_);
    take(part);
    part.begin += part.count;
  } while (part.begin < parts.total);
}

template <class Copy>
void StagedBackend::each_peer(const Copy& copy) const {
  for_each_peer(rank(), world(), copy);
}

std::span<const void*> StagedBackend::contributions(std::int64_t offset_bytes, const void* own) {
  for (int member = 0; member < world(); ++member)
    contributions_[member] = member == rank() ? own : at(group_->incoming(member), offset_bytes);
  return contributions_;
}

void StagedBackend::all_gather(const void* shard, void* full, std::int64_t shard_bytes, CallLabel label) {
  char* own = at(full, rank() * shard_bytes);
  if (own != shard) kernels::copy(own, shard, shard_bytes);
  begin(Call::make(Operation::all_gather, shard_bytes, label));
  if (pulled(shard, shard_bytes, [&](Puller& peers) { return peers.pull_all_gather(full, shard_bytes); }))
    return;
  in_parts(
      {.total = shard_bytes, .step = group_->buffer_bytes()},
      [&](Part part) { kernels::copy(group_->outgoing(), at(shard, part.begin), part.count); },
      [&](Part part) {
        each_peer([&](int peer) {
          kernels::copy(at(full, peer * shard_bytes + part.begin), group_->incoming(peer), part.count);
        });
      });
  count((world() - 1) * shard_bytes);
}

void StagedBackend::reduce_scatter(const ReduceScatter& request, CallLabel label) {
  const std::int64_t width = bytes_of(request.wire), slice_bytes = request.shard_numel * width;
  const bool contributes = request.contributors.contains(rank());
  begin(Call::reduce_scatter(request, world(), label));
  // Peers read nothing of a rank that does not contribute; its shard tells them in which arenas it works.
  if (pulled(contributes ? request.full : request.shard, slice_bytes,
             [&](Puller& peers) { return peers.pull_reduce_scatter(request); }))
    return;
  const std::int64_t lane = lane_bytes();
  in_parts(
      {.total = request.shard_numel,
       .step = lane / width,
       .width = width,
       .stride_bytes = lane,
       .contributors = request.contributors},
      [&](Part part) {
        if (!contributes) return;
        each_peer([&](int peer) {
          kernels::copy(group_->outgoing() + peer * lane,
                        at(request.full, peer * slice_bytes + part.begin * width), part.count * width);
        });
      },
      [&](Part part) {
        const void* own = contributes ? at(request.full, rank() * slice_bytes + part.begin * width) : nullptr;
        const std::span<const void*> all = contributions(rank() * lane, own);
        reduce(request,
               all.subspan(static_cast<std::size_t>(request.contributors.first),
                           static_cast<std::size_t>(request.contributors.count)),
               part.count, request.shard + part.begin);
      });
  take_squares(request);
  count(contributed_bytes(request, rank()));
}

// Each rank sums its slice of a part and stages the sums, which its peers then pull.
template <class Element>
void StagedBackend::reduce_everywhere(const Call& call, Element* data, std::int64_t numel) {
  constexpr auto kWidth = static_cast<std::int64_t>(sizeof(Element));
  const std::int64_t step = group_->buffer_bytes() / kWidth;
  const bool everywhere = numel * kWidth * world() <= kSumEverywhereBytes;
  begin(call);
  if (pulled(data, numel * kWidth, [&](Puller& peers) { return peers.pull_all_reduce(data, numel); })) return;
  in_parts(
      {.total = numel, .step = step, .width = kWidth, .slices = everywhere ? 1 : world()},
      [&](Part part) { kernels::copy(group_->outgoing(), data + part.begin, part.count * kWidth); },
      [&](Part part) {
        Element* const values = data + part.begin;
        if (everywhere && part.count > 0) sum_into(contributions(0, values), part.count, values);
        if (everywhere) return count((world() - 1) * part.count * kWidth);
        const Slices slices(part.count, world());
        const std::int64_t begin = slices.begin_of(rank()), own = slices.numel_of(rank());
        if (own > 0) sum_into(contributions(begin * kWidth, values + begin), own, values + begin);
        kernels::copy(group_->outgoing(), values + begin, own * kWidth);
        group_->exchange({.bytes = own * kWidth, .total_bytes = own * kWidth}, deadline_);
        each_peer([&](int peer) {
          kernels::copy(values + slices.begin_of(peer), group_->incoming(peer),
                        slices.numel_of(peer) * kWidth);
        });
        count(((world() - 1) * own + part.count - own) * kWidth);
      });
}

void StagedBackend::all_reduce(float* data, std::int64_t numel, CallLabel label) {
  reduce_everywhere(Call::make(Operation::all_reduce_fp32, numel, label), data, numel);
}

void StagedBackend::all_reduce(double* data, std::int64_t numel, CallLabel label) {
  reduce_everywhere(Call::make(Operation::all_reduce_fp64, numel, label), data, numel);
}

void StagedBackend::broadcast(void* data, std::int64_t bytes, int root, CallLabel label) {
  Call call = Call::make(Operation::broadcast, bytes, label);
  call.root = root;
  const bool sends = rank() == root;
  begin(call);
  if (pulled(data, bytes, [&](Puller& peers) { return peers.pull_broadcast(data, bytes, root); })) return;
  in_parts(
      {.total = bytes, .step = group_->buffer_bytes(), .root = root},
      [&](Part part) {
        if (sends) kernels::copy(group_->outgoing(), at(data, part.begin), part.count);
      },
      [&](Part part) {
        if (!sends) kernels::copy(at(data, part.begin), group_->incoming(root), part.count);
      });
  if (!sends) count(bytes);
}

void StagedBackend::all_to_all(const void* input, void* output, std::int64_t block_bytes, CallLabel label) {
  kernels::copy(at(output, rank() * block_bytes), at(input, rank() * block_bytes), block_bytes);
  begin(Call::make(Operation::all_to_all, block_bytes, label));
  if (pulled(input, block_bytes, [&](Puller& peers) { return peers.pull_all_to_all(output, block_bytes); }))
    return;
  const std::int64_t lane = lane_bytes();
  in_parts(
      {.total = block_bytes, .step = lane, .stride_bytes = lane},
      [&](Part part) {
        each_peer([&](int peer) {
          kernels::copy(group_->outgoing() + peer * lane, at(input, peer * block_bytes + part.begin),
                        part.count);
        });
      },
      [&](Part part) {
        each_peer([&](int peer) {
          kernels::copy(at(output, peer * block_bytes + part.begin), group_->incoming(peer) + rank() * lane,
                        part.count);
        });
      });
  count((world() - 1) * block_bytes);
}

void StagedBackend::barrier(CallLabel label) { meet(Call::make(Operation::barrier, 0, label)); }

void StagedBackend::meet(const Call& call) {
  begin(call);
  in_parts(
      {.step = 1}, [](Part) {}, [](Part) {});
}

void StagedBackend::send(const void* data, std::int64_t bytes, int to, CallLabel label) {
  delay();
  group_->send(to, Call::make(Operation::send, bytes, label), data, deadline_);
}

void StagedBackend::recv(void* data, std::int64_t bytes, int from, CallLabel label) {
  delay();
  group_->recv(from, Call::make(Operation::recv, bytes, label), data, deadline_);
  count(bytes);
}

// ---- arenas ----

bool StagedBackend::wants_shared_arena() const { return world() > 1 && group_->on_one_host(); }

// All tell what to map, map it, and tell how that went: it is used by all or by none.
ArenaRegistration StagedBackend::register_arena(Arena& arena) {
  if (world() == 1) return {.direct = true};
  if (!group_->on_one_host()) return {.reason = "ranks on several hosts exchange messages"};
  constexpr CallLabel kLabel{.unit = "set-up", .operation = "register_arena"};
  struct Outcome {
    std::array<char, 200> refusal{};
  };
  IdVector<SharedArena> arenas(world());
  IdVector<Outcome> outcomes(world());
  const SharedArena own = SharedArena::of(arena);
  all_gather(&own, arenas.data(), sizeof own, kLabel);

  Outcome outcome;
  std::shared_ptr<MappedArenas> mapped;
  try {
    if (!group_->world()->options().direct)
      throw EnvironmentError(fmt::format("{}::direct is false", group_->world()->options().settings));
    mapped = group_->map(arena, arenas);
  } catch (const EnvironmentError& error) {
    std::string_view(error.what()).copy(outcome.refusal.data(), outcome.refusal.size() - 1);
  }
  all_gather(&outcome, outcomes.data(), sizeof outcome, kLabel);
  for (int rank = 0; rank < world(); ++rank)
    if (const Outcome& other = outcomes[rank]; other.refusal[0] != 0)
      return {.reason = fmt::format("rank {}: {}", group_->global_rank(rank), other.refusal.data())};
  arena.attach(group_->world()->arenas()->add(std::move(mapped)));
  return {.direct = true};
}

std::optional<Failure> StagedBackend::failure() const { return group_->world()->failure(); }

std::vector<int> StagedBackend::ended() const {
  const StagedWorld& world = *group_->world();
  std::vector<int> ranks;
  for (int rank = 0; world.shared().any_ended() && rank < world.ranks(); ++rank)
    if (world.shared().ended(rank)) ranks.push_back(rank);
  return ranks;
}

void StagedBackend::rethrow_failure(const std::string& call) { group_->world()->rethrow_failure(call); }

void StagedBackend::fail(int culprit, const std::string& message) { group_->world()->fail(culprit, message); }

void StagedBackend::set_waiting(bool waiting) {
  group_->world()->shared().set_state(group_->world()->rank(),
                                      waiting ? RankState::waiting : RankState::working);
}

void StagedBackend::attach(FailureFlag flag) {
  flag.on_failure([weak = std::weak_ptr(group_->world())](const std::string& message) {
    if (const auto world = weak.lock()) world->fail(world->rank(), message);
  });
}

Communicator communicator_of(const std::shared_ptr<StagedWorld>& world) {
  IdVector<int> ranks(world->ranks());
  std::iota(ranks.begin(), ranks.end(), 0);
  return Communicator(std::make_shared<StagedBackend>(
      StagedGroup::make({.world = world, .global_ranks = ranks, .me = world->rank(), .name = "world"})));
}

}  // namespace tessera::comm
