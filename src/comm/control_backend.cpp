#include "src/comm/control_backend.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <numeric>

#include "src/comm/ordered_chain.h"
#include "src/device/wait.h"

namespace tessera {

bool control_available() { return true; }

Communicator make_control_world(const ControlOptions& options) {
  if (options.world < 1 || options.rank < 0 || options.rank >= options.world)
    throw UsageError(fmt::format("rank {} of a world of {} ranks: use 0 to {}", options.rank, options.world,
                                 std::max(options.world - 1, 0)));
  if (options.port < 1 || options.port > 65535)
    throw UsageError(fmt::format("port is {}; use 1 to 65535", options.port));
  std::vector<int> ranks(static_cast<std::size_t>(options.world));
  std::iota(ranks.begin(), ranks.end(), 0);
  return Communicator(std::make_shared<comm::ControlBackend>(std::make_shared<comm::ControlWorld>(options), 0,
                                                             std::move(ranks), "world"));
}

namespace comm {
namespace {

int place_of(int rank, const std::vector<int>& ranks) {
  return static_cast<int>(std::find(ranks.begin(), ranks.end(), rank) - ranks.begin());
}

}  // namespace

ControlBackend::ControlBackend(std::shared_ptr<ControlWorld> world, std::uint64_t parent,
                               std::vector<int> global_ranks, std::string name)
    : world_(std::move(world)),
      global_ranks_(std::move(global_ranks)),
      name_(std::move(name)),
      me_(place_of(world_->rank(), global_ranks_)),
      key_(world_->announce(parent, global_ranks_, name_)),
      deadline_(world_->options().deadline),
      delay_(world_->options().delay) {}

std::shared_ptr<Backend> ControlBackend::subgroup(const std::vector<int>& ranks, const std::string& name) {
  std::vector<int> global(ranks.size());
  std::transform(ranks.begin(), ranks.end(), global.begin(),
                 [&](int rank) { return global_ranks_[static_cast<std::size_t>(rank)]; });
  auto made = std::make_shared<ControlBackend>(world_, key_, std::move(global), name);
  made->deadline_ = deadline_;
  made->delay_ = delay_;
  return made;
}

// ---- what a call is made of ----

std::vector<char> ControlBackend::exchange(const LocalCall& call, std::uint64_t sequence, int peer,
                                           const void* data, std::int64_t bytes) {
  device::sleep_exactly(delay_);
  FrameHeader header;
  header.member = me_;
  header.peer = peer;
  header.group = key_;
  header.sequence = sequence;
  header.deadline_us = deadline_.count();
  header.call = WireCall(call);
  return world_->exchange(header, {static_cast<const char*>(data), static_cast<std::size_t>(bytes)},
                          fmt::format("{} on '{}'", call.text(sequence), name_));
}

std::vector<char> ControlBackend::collective(const LocalCall& call, const void* data, std::int64_t bytes) {
  return exchange(call, ++sequence_, -1, data, bytes);
}

template <class Element>
void ControlBackend::reduce(const LocalCall& call, Element* data, std::int64_t numel) {
  const std::int64_t bytes = numel * static_cast<std::int64_t>(sizeof(Element));
  const std::vector<char> all = collective(call, data, bytes);
  std::vector<const void*> contributions;
  contributions.reserve(static_cast<std::size_t>(world()));
  for (int peer = 0; peer < world(); ++peer) contributions.push_back(all.data() + peer * bytes);
  sum_into(contributions, numel, data);
  bytes_received_ += (world() - 1) * bytes;
}

// ---- calls ----

void ControlBackend::all_gather(const void* shard, void* full, std::int64_t shard_bytes, CallLabel label) {
  const std::vector<char> all =
      collective(LocalCall::make(Operation::all_gather, shard_bytes, label), shard, shard_bytes);
  if (!all.empty()) std::memcpy(full, all.data(), all.size());
  bytes_received_ += (world() - 1) * shard_bytes;
}

void ControlBackend::reduce_scatter(const ReduceScatter& request, CallLabel label) {
  LocalCall call = LocalCall::make(Operation::reduce_scatter, request.shard_numel, label);
  call.type = request.wire;
  const std::int64_t slice = request.shard_numel * bytes_of(request.wire);
  const std::vector<char> all = collective(call, request.full, world() * slice);
  std::vector<const void*> contributions;
  contributions.reserve(static_cast<std::size_t>(world()));
  for (int peer = 0; peer < world(); ++peer)
    contributions.push_back(all.data() + (peer * world() + me_) * slice);
  if (request.shard_numel > 0)
    ordered_chain(contributions, request.wire, request.shard_numel, request.accumulate, request.shard);
  bytes_received_ += (world() - 1) * slice;
}

void ControlBackend::all_reduce(float* data, std::int64_t numel, CallLabel label) {
  reduce(LocalCall::make(Operation::all_reduce_fp32, numel, label), data, numel);
}

void ControlBackend::all_reduce(double* data, std::int64_t numel, CallLabel label) {
  reduce(LocalCall::make(Operation::all_reduce_fp64, numel, label), data, numel);
}

void ControlBackend::broadcast(void* data, std::int64_t bytes, int root, CallLabel label) {
  LocalCall call = LocalCall::make(Operation::broadcast, bytes, label);
  call.root = root;
  const std::vector<char> all = collective(call, data, me_ == root ? bytes : 0);
  if (me_ == root) return;
  if (!all.empty()) std::memcpy(data, all.data(), all.size());
  bytes_received_ += bytes;
}

void ControlBackend::all_to_all(const void* input, void* output, std::int64_t block_bytes, CallLabel label) {
  const std::vector<char> all =
      collective(LocalCall::make(Operation::all_to_all, block_bytes, label), input, world() * block_bytes);
  for (int peer = 0; block_bytes > 0 && peer < world(); ++peer)
    std::memcpy(static_cast<char*>(output) + peer * block_bytes,
                all.data() + (peer * world() + me_) * block_bytes, static_cast<std::size_t>(block_bytes));
  bytes_received_ += (world() - 1) * block_bytes;
}

void ControlBackend::send(const void* data, std::int64_t bytes, int to, CallLabel label) {
  exchange(LocalCall::make(Operation::send, bytes, label), ++sent_[to], to, data, bytes);
}

void ControlBackend::recv(void* data, std::int64_t bytes, int from, CallLabel label) {
  const std::vector<char> came =
      exchange(LocalCall::make(Operation::recv, bytes, label), ++taken_[from], from, nullptr, 0);
  if (!came.empty()) std::memcpy(data, came.data(), came.size());
  bytes_received_ += bytes;
}

void ControlBackend::attach(FailureFlag flag) {
  flag.on_failure([weak = std::weak_ptr(world_)](const std::string& message) {
    if (const auto world = weak.lock()) world->fail(world->rank(), message);
  });
}

}  // namespace comm
}  // namespace tessera
