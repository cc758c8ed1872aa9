#include "src/comm/control/backend.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <numeric>

#include "src/comm/ordered_chain.h"
#include "src/device/wait.h"

namespace tessera {

bool control_available() { return true; }

Communicator make_control_world(const ControlOptions& given) {
  ControlOptions options = given;
  options.deadline = device::checked_deadline(given.deadline, "deadline");
  if (options.world < 1 || options.rank < 0 || options.rank >= options.world)
    throw UsageError(fmt::format("rank {} of a world of {} ranks: use 0 to {}", options.rank, options.world,
                                 std::max(options.world - 1, 0)));
  if (options.port < 1 || options.port > 65535)
    throw UsageError(fmt::format("port is {}; use 1 to 65535", options.port));
  IdVector<int> ranks(options.world);
  std::iota(ranks.begin(), ranks.end(), 0);
  return Communicator(std::make_shared<comm::ControlBackend>(std::make_shared<comm::ControlWorld>(options), 0,
                                                             std::move(ranks), "world"));
}

namespace comm {
namespace {

int place_of(int rank, const std::vector<int>& ranks) {
  return static_cast<int>(std::find(ranks.begin(), ranks.end(), rank) - ranks.begin());
}

std::span<const char> bytes_at(const void* data, std::int64_t begin, std::int64_t bytes) {
  return {static_cast<const char*>(data) + begin, static_cast<std::size_t>(bytes)};
}

void put(void* data, std::int64_t begin, const char* from, std::int64_t bytes) {
  if (bytes > 0) std::memcpy(static_cast<char*>(data) + begin, from, static_cast<std::size_t>(bytes));
}

// The same bytes of every block, behind one another.
std::span<const char> of_every_block(std::vector<char>& columns, const void* data, int blocks,
                                     std::int64_t block_bytes, std::int64_t begin, std::int64_t bytes) {
  columns.resize(static_cast<std::size_t>(blocks * bytes));
  for (int block = 0; block < blocks; ++block)
    put(columns.data(), block * bytes, static_cast<const char*>(data) + block * block_bytes + begin, bytes);
  return columns;
}

}  // namespace

ControlBackend::ControlBackend(std::shared_ptr<ControlWorld> world, std::uint64_t parent,
                               IdVector<int> global_ranks, std::string name)
    : world_(std::move(world)),
      global_ranks_(std::move(global_ranks)),
      name_(std::move(name)),
      me_(place_of(world_->rank(), global_ranks_)),
      key_(world_->announce(parent, global_ranks_, name_)),
      deadline_(world_->options().deadline),
      delay_(world_->options().delay) {}

std::shared_ptr<Backend> ControlBackend::subgroup(const std::vector<int>& ranks, const std::string& name) {
  std::vector<int> global(ranks.size());
  std::transform(ranks.begin(), ranks.end(), global.begin(), [&](int rank) { return global_ranks_[rank]; });
  auto made = std::make_shared<ControlBackend>(world_, key_, std::move(global), name);
  made->deadline_ = deadline_;
  made->delay_ = delay_;
  return made;
}

// ---- what a call is made of ----

void ControlBackend::exchange(const Call& call, std::uint64_t sequence, int peer, const Content& content) {
  const std::string text = fmt::format("{} on '{}'", call.text(sequence), name_);
  if (content.each_bytes > kMostFrameBytes)
    throw UsageError(fmt::format("{}: {} ranks bring {} bytes at once; a control connection takes at most {}",
                                 text, world(), content.each_bytes, kMostFrameBytes));
  device::sleep_exactly(delay_);
  FrameHeader header;
  header.member = me_;
  header.peer = peer;
  header.group = key_;
  header.sequence = sequence;
  header.deadline_us = std::chrono::microseconds(deadline_).count();
  header.call = WireCall(call);
  const std::int64_t most = std::max<std::int64_t>(world_->piece_bytes() / content.each_bytes, 1);
  Range range;
  do {
    range.count = std::min(most, content.numel - range.begin);
    const std::span<const char> own = content.bring ? content.bring(range) : std::span<const char>();
    const std::vector<char> all = world_->exchange(header, own, text);
    const std::int64_t expected = content.each_bytes * range.count;
    if (content.take && std::ssize(all) != expected) {
      world_->fail(0, fmt::format("{}: rank 0 answered with {} bytes, not {}", text, all.size(), expected));
      world_->rethrow_failure(text);
    }
    if (content.take) content.take(range, all);
    ++header.piece;
    range.begin += range.count;
  } while (range.begin < content.numel);
}

template <class Element>
void ControlBackend::reduce(const Call& call, Element* data, std::int64_t numel) {
  const auto element = static_cast<std::int64_t>(sizeof(Element));
  IdVector<const void*> contributions(world());
  Content content{.numel = numel, .each_bytes = world() * element};
  content.bring = [&](const Range& range) {
    return bytes_at(data, range.begin * element, range.count * element);
  };
  content.take = [&](const Range& range, const std::vector<char>& all) {
    for (int peer = 0; peer < world(); ++peer)
      contributions[peer] = all.data() + peer * range.count * element;
    sum_into(contributions, range.count, data + range.begin);
  };
  collective(call, content);
  bytes_received_ += (world() - 1) * numel * element;
}

// ---- calls ----

void ControlBackend::all_gather(const void* shard, void* full, std::int64_t shard_bytes, CallLabel label) {
  Content content{.numel = shard_bytes, .each_bytes = world()};
  content.bring = [&](const Range& range) { return bytes_at(shard, range.begin, range.count); };
  content.take = [&](const Range& range, const std::vector<char>& all) {
    for (int peer = 0; peer < world(); ++peer)
      put(full, peer * shard_bytes + range.begin, all.data() + peer * range.count, range.count);
  };
  collective(Call::make(Operation::all_gather, shard_bytes, label), content);
  bytes_received_ += (world() - 1) * shard_bytes;
}

void ControlBackend::reduce_scatter(const ReduceScatter& request, CallLabel label) {
  const std::int64_t element = bytes_of(request.wire), slice = request.shard_numel * element;
  std::vector<char> columns;
  const auto [first, count] = request.contributors;
  IdVector<const void*> contributions(count);
  Content content{.numel = request.shard_numel, .each_bytes = std::int64_t{count} * world() * element};
  if (request.contributors.contains(me_))
    content.bring = [&](const Range& range) {
      return of_every_block(columns, request.full, world(), slice, range.begin * element,
                            range.count * element);
    };
  content.take = [&](const Range& range, const std::vector<char>& all) {
    if (range.count == 0) return;
    for (std::size_t k = 0; k < contributions.size(); ++k)
      contributions[k] = all.data() + (static_cast<std::int64_t>(k) * world() + me_) * range.count * element;
    comm::reduce(request, contributions, range.count, request.shard + range.begin);
  };
  collective(Call::reduce_scatter(request, world(), label), content);
  take_squares(request);
  bytes_received_ += contributed_bytes(request, me_);
}

void ControlBackend::all_reduce(float* data, std::int64_t numel, CallLabel label) {
  reduce(Call::make(Operation::all_reduce_fp32, numel, label), data, numel);
}

void ControlBackend::all_reduce(double* data, std::int64_t numel, CallLabel label) {
  reduce(Call::make(Operation::all_reduce_fp64, numel, label), data, numel);
}

void ControlBackend::broadcast(void* data, std::int64_t bytes, int root, CallLabel label) {
  Call call = Call::make(Operation::broadcast, bytes, label);
  call.root = root;
  Content content{.numel = bytes};
  if (me_ == root)
    content.bring = [&](const Range& range) { return bytes_at(data, range.begin, range.count); };
  else
    content.take = [&](const Range& range, const std::vector<char>& all) {
      put(data, range.begin, all.data(), range.count);
    };
  collective(call, content);
  if (me_ != root) bytes_received_ += bytes;
}

void ControlBackend::all_to_all(const void* input, void* output, std::int64_t block_bytes, CallLabel label) {
  std::vector<char> columns;
  Content content{.numel = block_bytes, .each_bytes = std::int64_t{world()} * world()};
  content.bring = [&](const Range& range) {
    return of_every_block(columns, input, world(), block_bytes, range.begin, range.count);
  };
  content.take = [&](const Range& range, const std::vector<char>& all) {
    for (int peer = 0; peer < world(); ++peer)
      put(output, peer * block_bytes + range.begin,
          all.data() + (std::int64_t{peer} * world() + me_) * range.count, range.count);
  };
  collective(Call::make(Operation::all_to_all, block_bytes, label), content);
  bytes_received_ += (world() - 1) * block_bytes;
}

void ControlBackend::send(const void* data, std::int64_t bytes, int to, CallLabel label) {
  Content content{.numel = bytes};
  content.bring = [&](const Range& range) { return bytes_at(data, range.begin, range.count); };
  exchange(Call::make(Operation::send, bytes, label), ++sent_[to], to, content);
}

void ControlBackend::recv(void* data, std::int64_t bytes, int from, CallLabel label) {
  Content content{.numel = bytes};
  content.take = [&](const Range& range, const std::vector<char>& all) {
    put(data, range.begin, all.data(), range.count);
  };
  exchange(Call::make(Operation::recv, bytes, label), ++taken_[from], from, content);
  bytes_received_ += bytes;
}

void ControlBackend::attach(FailureFlag flag) {
  flag.on_failure([weak = std::weak_ptr(world_)](const std::string& message) {
    if (const auto world = weak.lock()) world->fail(world->rank(), message);
  });
}

}  // namespace comm
}  // namespace tessera
