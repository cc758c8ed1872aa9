#include "src/comm/nccl/backend.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "kernels/check.h"
#include "kernels/reduce.h"
#include "src/comm/ordered_chain.h"
#include "src/comm/puller.h"
#include "src/device/activity.h"
#include "src/device/cuda_check.h"
#include "src/device/cuda_stream.h"
#include "src/device/wait.h"
#include "tessera/shape.h"

namespace tessera::comm {
namespace {

using device::check_cuda;

constexpr std::int64_t kAlignment = 256;  // of a rank's part of the staging memory
constexpr std::int64_t kLeastSlot = 4096;

const std::byte* bytes_at(const void* base, std::int64_t offset) {
  return static_cast<const std::byte*>(base) + offset;
}
std::byte* bytes_at(void* base, std::int64_t offset) { return static_cast<std::byte*>(base) + offset; }

ncclDataType_t nccl_type(DType type) {
  return type == DType::fp32 ? ncclFloat32 : type == DType::bf16 ? ncclBfloat16 : ncclFloat16;
}

IdVector<int> all_ranks(int world) {
  IdVector<int> ranks(world);
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

std::string describe(const void* context) {
  const auto& call = *static_cast<const NcclCall*>(context);
  return call.call.text(call.sequence);
}

}  // namespace

NcclBackend::NcclBackend(std::shared_ptr<NcclWorld> world, std::shared_ptr<Backend> host)
    : world_(std::move(world)), host_(std::move(host)), deadline_(world_->options().deadline) {}

std::shared_ptr<NcclBackend> NcclBackend::over(const std::shared_ptr<Backend>& host,
                                               const NcclOptions& options) {
  // Its own: the caller may go on with what it gave.
  const std::shared_ptr<Backend> own = host->subgroup(all_ranks(host->world()), host->name());
  own->set_deadline(options.deadline);
  return std::make_shared<NcclBackend>(std::make_shared<NcclWorld>(own, options), own);
}

std::shared_ptr<Backend> NcclBackend::subgroup(const std::vector<int>& ranks, const std::string& name) {
  auto made = std::make_shared<NcclBackend>(world_, host_->subgroup(ranks, name));
  made->deadline_ = deadline_;
  made->delay_ = delay_;
  return made;
}

void NcclBackend::bind(Stream& stream, const MostReduced& most) {
  const auto* const gpu = dynamic_cast<const device::CudaStream*>(&stream);
  if (gpu == nullptr) return;
  if (channel_)
    throw UsageError(
        fmt::format("bind of '{}' to stream '{}': it is bound already; duplicate it", name(), stream.name()));
  received_before_ = host_->bytes_received();
  compare_members(most);
  contributions_.reserve(global_ranks_.size());
  for (std::shared_ptr<Backend>* meeting : {&meeting_, &first_meeting_})
    *meeting = host_->subgroup(all_ranks(world()), name());
  const std::int64_t wanted = round_up(most.numel * bytes_of(DType::fp32), kAlignment);
  const std::int64_t allowed = world_->options().staging_bytes / world() / kAlignment * kAlignment;
  channel_ = std::make_unique<NcclChannel>(
      *world_, host_,
      NcclChannel::Options{.stream = static_cast<cudaStream_t>(gpu->native()),
                           .ordinal = gpu->ordinal(),
                           .members = global_ranks_,
                           .staging_bytes = std::max(
                               world() * std::max(std::min(wanted, allowed), kLeastSlot), most.native_bytes),
                           .deadline = deadline_});
}

// How a reduction is cut into parts follows from these: with others NCCL would wait for what no peer sends.
void NcclBackend::compare_members(const MostReduced& most) {
  struct Member {
    int rank = 0;
    MostReduced most;
    std::int64_t staging_bytes = 0;
  };
  const Member own = {.rank = global_rank(), .most = most, .staging_bytes = world_->options().staging_bytes};
  IdVector<Member> members(world());
  host_->all_gather(&own, members.data(), sizeof own, {"set-up", "connecting GPUs"});
  const auto text = [](const Member& member) {
    return fmt::format(
        "exact reductions of {} elements, native ones of {} bytes and {} bytes of staging memory",
        member.most.numel, member.most.native_bytes, member.staging_bytes);
  };
  global_ranks_.clear();
  for (const Member& member : members) {
    global_ranks_.push_back(member.rank);
    if (text(member) != text(own))
      throw UsageError(
          fmt::format("bind of '{}': rank {} asks for {}, this rank for {}; all must ask for the same",
                      name(), member.rank, text(member), text(own)));
  }
}

// NCCL connects two ranks by the first message between them, for which both hosts wait. In a step one of them
// may wait for what the other is given only behind that message.
void NcclBackend::connect_pair() {
  if (!channel_) return;
  channel_->keep_unregistered();
  const int peer = 1 - rank();
  const Operation operation = rank() == 0 ? Operation::send : Operation::recv;
  message(Call::make(operation, 1, {"set-up", "connecting GPUs"}), 0, peer, [&](ncclComm_t communicator) {
    if (operation == Operation::send)
      check_nccl(nccl().ncclSend(channel_->staging(), 1, ncclUint8, peer, communicator, channel_->stream()),
                 "ncclSend", communicator);
    else
      check_nccl(nccl().ncclRecv(channel_->staging(), 1, ncclUint8, peer, communicator, channel_->stream()),
                 "ncclRecv", communicator);
  });
}

// ---- what a call is made of ----

template <class Work>
void NcclBackend::collective(const Call& call, std::int64_t received_bytes, const Work& work) {
  device::sleep_exactly(delay_);
  const NcclWorld::Turn turn(*world_,
                             [&] { return fmt::format("{} on '{}'", call.text(sequence_ + 1), name()); });
  meeting_->meet(call);
  const NcclCall issued{call, ++sequence_};
  const device::Activity activity(&describe, &issued);
  const std::tuple kind{call.operation, call.type, call.count, call.contributors};
  new_ = known_.contains(kind) ? nullptr : &call;
  channel_->issue(issued, work);
  bytes_received_.fetch_add(received_bytes);
  if (std::exchange(new_, nullptr) != nullptr) known_.insert(kind);
}

// For what is new NCCL may map registered memory by its peers' drivers. A rank that went on could load a
// kernel: its driver lets nobody in then before its GPU is idle, which waits for these peers.
template <class Exchange>
void NcclBackend::group(const Exchange& exchange) {
  channel_->group(exchange);
  if (new_ != nullptr) first_meeting_->meet(*new_);
}

template <class Work>
void NcclBackend::message(const Call& call, std::uint64_t sequence, int peer, const Work& work) {
  device::sleep_exactly(delay_);
  const NcclWorld::Turn turn(*world_, [&] { return fmt::format("{} on '{}'", call.text(sequence), name()); });
  const NcclCall issued{call, sequence, global_ranks_[peer]};
  meeting_->rethrow_failure(fmt::format("{} on '{}'", call.text(sequence), name()));
  const device::Activity activity(&describe, &issued);
  channel_->issue(issued, [&] {
    if (call.count > 0) channel_->group(work);
  });
}

template <class Place>
void NcclBackend::exchange(const Blocks& blocks, const Place& place) {
  if (world() == 1) return;
  const auto count = static_cast<std::size_t>(blocks.bytes);
  group([&](ncclComm_t communicator) {
    for_each_peer(rank(), world(), [&](int peer) {
      if (blocks.senders.contains(rank()))
        check_nccl(nccl().ncclSend(blocks.from + peer * blocks.stride_bytes, count, ncclUint8, peer,
                                   communicator, channel_->stream()),
                   "ncclSend", communicator);
      if (blocks.senders.contains(peer))
        check_nccl(nccl().ncclRecv(place(peer), count, ncclUint8, peer, communicator, channel_->stream()),
                   "ncclRecv", communicator);
    });
  });
}

void NcclBackend::copy(void* to, const void* from, std::int64_t bytes) {
  if (to == from || bytes == 0) return;
  check_cuda(cudaMemcpyAsync(to, from, static_cast<std::size_t>(bytes), cudaMemcpyDeviceToDevice,
                             channel_->stream()),
             "cudaMemcpyAsync");
}

kernels::ComputeContext NcclBackend::on_stream() const {
  return {.workspace = {}, .device = DeviceType::cuda, .stream = channel_->stream()};
}

void NcclBackend::chain(std::int64_t numel, DType type, bool accumulate, float* result) {
  kernels::ordered_chain(on_stream(), numel, type, contributions_, accumulate ? 1.0f : 0.0f, result);
}

// ---- calls ----

void NcclBackend::all_gather(const void* shard, void* full, std::int64_t shard_bytes, CallLabel label) {
  if (!channel_) return host_->all_gather(shard, full, shard_bytes, label);
  collective(Call::make(Operation::all_gather, shard_bytes, label), (world() - 1) * shard_bytes, [&] {
    if (shard_bytes == 0) return;
    group([&](ncclComm_t communicator) {
      check_nccl(nccl().ncclAllGather(shard, full, static_cast<std::size_t>(shard_bytes), ncclUint8,
                                      communicator, channel_->stream()),
                 "ncclAllGather", communicator);
    });
  });
}

void NcclBackend::reduce_scatter(const ReduceScatter& request, CallLabel label) {
  if (!channel_) return host_->reduce_scatter(request, label);
  const bool native = request.reduction == Reduction::native;
  collective(Call::reduce_scatter(request, world(), label), contributed_bytes(request, rank()), [&] {
    native ? reduce_natively(request) : reduce_exactly(request);
    if (request.squares.sum != nullptr)
      kernels::sum_of_squares(on_stream(), request.shard_numel, DType::fp32, request.shard, request.squares);
  });
}

// NCCL's sum has the wire's type: what is to be fp32, or to be added to, comes by way of the staging memory.
void NcclBackend::reduce_natively(const ReduceScatter& call) {
  if (call.shard_numel == 0) return;
  const bool staged = call.wire != DType::fp32 || call.accumulate;
  const std::int64_t bytes = call.shard_numel * bytes_of(call.wire);
  if (staged && bytes > channel_->staging_bytes())
    throw UsageError(
        fmt::format("native reduce_scatter on '{}' of a shard of {} bytes; it was bound for at most {}",
                    name(), bytes, channel_->staging_bytes()));
  void* const sum = staged ? channel_->staging() : static_cast<void*>(call.shard);
  group([&](ncclComm_t communicator) {
    check_nccl(nccl().ncclReduceScatter(call.full, sum, static_cast<std::size_t>(call.shard_numel),
                                        nccl_type(call.wire), ncclSum, communicator, channel_->stream()),
               "ncclReduceScatter", communicator);
  });
  if (staged)
    kernels::accumulate(on_stream(), call.shard_numel, call.wire, sum, call.accumulate ? 1.0f : 0.0f,
                        call.shard);
}

// Each rank's slice of every rank's buffer comes to its staging memory, part by part, and is added there in
// rank order.
void NcclBackend::reduce_exactly(const ReduceScatter& call) {
  const int scratch = call.balanced ? kernels::balanced_scratch(call.contributors.count) : 0;
  const std::int64_t slot_bytes = channel_->staging_bytes() / (world() + scratch) / kAlignment * kAlignment;
  const std::int64_t part = slot_bytes / bytes_of(scratch > 0 ? DType::fp32 : call.wire);
  for (std::int64_t begin = 0; begin < call.shard_numel; begin += part)
    reduce_part(call, begin, std::min(part, call.shard_numel - begin), slot_bytes);
}

void NcclBackend::reduce_part(const ReduceScatter& call, std::int64_t begin, std::int64_t numel,
                              std::int64_t slot_bytes) {
  const std::int64_t width = bytes_of(call.wire);
  const auto place = [&](int peer) { return staged(peer, slot_bytes); };
  const bool contributes = call.contributors.contains(rank());
  exchange({.from = contributes ? bytes_at(call.full, begin * width) : nullptr,
            .stride_bytes = call.shard_numel * width,
            .bytes = numel * width,
            .senders = call.contributors},
           place);
  contributions_.clear();
  for (int peer = 0; peer < call.contributors.count; ++peer)
    contributions_.push_back(place(call.contributors.first + peer));
  float* const result = call.shard + begin;
  auto* const scratch = reinterpret_cast<float*>(place(world()));
  const auto add_up = [&] {
    if (call.balanced)
      kernels::balanced_sum(on_stream(), numel, call.wire, contributions_, result, scratch);
    else
      chain(numel, call.wire, call.accumulate, result);
  };
  if (!contributes) return add_up();
  const void* own = bytes_at(call.full, (rank() * call.shard_numel + begin) * width);
  // The first sweep of a chain alone may write where it reads, and the first pair of a tree; a later rank's
  // own part would be gone by its turn.
  const int turn = rank() - call.contributors.first;
  if (own == result && turn >= (call.balanced ? 2 : kernels::kFirstSweep)) {
    copy(place(rank()), own, numel * width);
    own = place(rank());
  }
  contributions_[turn] = own;
  add_up();
}

// Part by part, every rank gathers all and adds it: few and small ones are reduced so.
void NcclBackend::all_reduce(float* data, std::int64_t numel, CallLabel label) {
  if (!channel_) return host_->all_reduce(data, numel, label);
  constexpr std::int64_t kWidth = sizeof(float);
  collective(Call::make(Operation::all_reduce_fp32, numel, label), (world() - 1) * numel * kWidth, [&] {
    const std::int64_t most = channel_->staging_bytes() / world() / kAlignment * kAlignment / kWidth;
    for (std::int64_t begin = 0; begin < numel; begin += most) {
      const std::int64_t part = std::min(most, numel - begin);
      group([&](ncclComm_t communicator) {
        check_nccl(nccl().ncclAllGather(data + begin, channel_->staging(), static_cast<std::size_t>(part),
                                        ncclFloat32, communicator, channel_->stream()),
                   "ncclAllGather", communicator);
      });
      contributions_.resize(static_cast<std::size_t>(world()));
      for (int peer = 0; peer < world(); ++peer) contributions_[peer] = staged(peer, part * kWidth);
      chain(part, DType::fp32, false, data + begin);
    }
  });
}

void NcclBackend::all_reduce(double* data, std::int64_t numel, CallLabel label) {
  if (!channel_) return host_->all_reduce(data, numel, label);
  throw UnsupportedError(
      fmt::format("all_reduce (fp64) on '{}', which is bound to a GPU: sum fp32 there, or fp64 by a "
                  "communicator that is not bound",
                  name()));
}

void NcclBackend::broadcast(void* data, std::int64_t bytes, int root, CallLabel label) {
  if (!channel_) return host_->broadcast(data, bytes, root, label);
  Call call = Call::make(Operation::broadcast, bytes, label);
  call.root = root;
  collective(call, rank() == root ? 0 : bytes, [&] {
    if (bytes == 0) return;
    group([&](ncclComm_t communicator) {
      check_nccl(nccl().ncclBroadcast(data, data, static_cast<std::size_t>(bytes), ncclUint8, root,
                                      communicator, channel_->stream()),
                 "ncclBroadcast", communicator);
    });
  });
}

void NcclBackend::all_to_all(const void* input, void* output, std::int64_t block_bytes, CallLabel label) {
  if (!channel_) return host_->all_to_all(input, output, block_bytes, label);
  collective(Call::make(Operation::all_to_all, block_bytes, label), (world() - 1) * block_bytes, [&] {
    if (block_bytes == 0) return;
    copy(bytes_at(output, rank() * block_bytes), bytes_at(input, rank() * block_bytes), block_bytes);
    exchange({.from = bytes_at(input, 0), .stride_bytes = block_bytes, .bytes = block_bytes},
             [&](int peer) { return bytes_at(output, peer * block_bytes); });
  });
}

// A byte from each: no rank's stream goes on before every rank's has come so far.
void NcclBackend::barrier(CallLabel label) {
  if (!channel_) return host_->barrier(label);
  collective(Call::make(Operation::barrier, 0, label), 0, [&] {
    group([&](ncclComm_t communicator) {
      check_nccl(nccl().ncclAllGather(channel_->staging() + rank(), channel_->staging(), 1, ncclUint8,
                                      communicator, channel_->stream()),
                 "ncclAllGather", communicator);
    });
  });
}

void NcclBackend::send(const void* data, std::int64_t bytes, int to, CallLabel label) {
  if (!channel_) return host_->send(data, bytes, to, label);
  message(Call::make(Operation::send, bytes, label), ++sent_[to], to, [&](ncclComm_t communicator) {
    check_nccl(nccl().ncclSend(data, static_cast<std::size_t>(bytes), ncclUint8, to, communicator,
                               channel_->stream()),
               "ncclSend", communicator);
  });
}

void NcclBackend::recv(void* data, std::int64_t bytes, int from, CallLabel label) {
  if (!channel_) return host_->recv(data, bytes, from, label);
  message(Call::make(Operation::recv, bytes, label), ++taken_[from], from, [&](ncclComm_t communicator) {
    check_nccl(nccl().ncclRecv(data, static_cast<std::size_t>(bytes), ncclUint8, from, communicator,
                               channel_->stream()),
               "ncclRecv", communicator);
  });
  bytes_received_.fetch_add(bytes);
}

// ---- captured calls ----

void NcclBackend::begin_capture() {
  if (!channel_) return;
  captured_ = std::make_unique<Captured>();
  received_captured_ = bytes_received_.load();
  channel_->begin_capture(captured_->calls);
}

std::unique_ptr<CapturedCalls> NcclBackend::end_capture() {
  if (!captured_) return nullptr;
  channel_->end_capture();
  // Nothing has come yet; numbers go on from where they were.
  captured_->received_bytes = bytes_received_.exchange(received_captured_) - received_captured_;
  for (const NcclCall& call : captured_->calls) --number_of(call);
  return std::move(captured_);
}

std::uint64_t& NcclBackend::number_of(const NcclCall& call) {
  if (call.peer < 0) return sequence_;
  const auto member = std::ranges::find(global_ranks_, call.peer);
  const int peer = static_cast<int>(member - global_ranks_.begin());
  return call.call.operation == Operation::send ? sent_[peer] : taken_[peer];
}

void NcclBackend::replay(const CapturedCalls& captured) {
  const auto& own = dynamic_cast<const Captured&>(captured);
  std::vector<NcclCall> calls = own.calls;
  for (NcclCall& call : calls) call.sequence = ++number_of(call);
  channel_->replay(calls);
  bytes_received_.fetch_add(own.received_bytes);
}

// ---- failure and settings ----

// What set-up moved is not counted.
std::int64_t NcclBackend::bytes_received() const {
  return (channel_ ? received_before_ : host_->bytes_received()) + bytes_received_.load();
}

void NcclBackend::attach(FailureFlag flag) {
  host_->attach(flag);
  world_->attach(std::move(flag));
}

void NcclBackend::set_deadline(std::chrono::milliseconds deadline) {
  deadline_ = deadline;
  host_->set_deadline(deadline);
  if (!channel_) return;
  meeting_->set_deadline(deadline);
  first_meeting_->set_deadline(deadline);
  channel_->set_deadline(deadline);
}

void NcclBackend::set_delay(std::chrono::microseconds delay) {
  delay_ = delay;
  if (!channel_) host_->set_delay(delay);
}

}  // namespace tessera::comm
