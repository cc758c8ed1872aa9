// Checks arguments once for all backends, then hands the call on.
#include "tessera/communicator.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "src/comm/arguments.h"
#include "src/comm/backend.h"
#include "src/device/wait.h"
#include "tessera/id_vector.h"

namespace tessera {

using comm::check_range, comm::check_rank, comm::overlap;

Communicator::Communicator(std::shared_ptr<comm::Backend> backend) : backend_(std::move(backend)) {}

int Communicator::rank() const { return backend_->rank(); }
int Communicator::world() const { return backend_->world(); }
int Communicator::global_rank() const { return backend_->global_rank(); }
const std::string& Communicator::name() const { return backend_->name(); }

Communicator Communicator::subgroup(const std::vector<int>& ranks, const std::string& name) const {
  std::vector<int> sorted = ranks;
  std::sort(sorted.begin(), sorted.end());
  if (std::adjacent_find(sorted.begin(), sorted.end()) != sorted.end())
    throw UsageError(fmt::format("subgroup '{}': a rank appears twice", name));
  for (int rank : ranks) check_rank("subgroup", "rank", rank, world());
  if (!std::binary_search(sorted.begin(), sorted.end(), rank()))
    throw UsageError(fmt::format("subgroup '{}' does not contain the calling rank {}", name, rank()));
  return Communicator(backend_->subgroup(ranks, name));
}

Communicator Communicator::duplicate(const std::string& name) const {
  IdVector<int> ranks(world());
  std::iota(ranks.begin(), ranks.end(), 0);
  return subgroup(ranks, name);
}

void Communicator::all_gather(const void* shard, void* full, std::int64_t shard_bytes, CallLabel label) {
  comm::check_all_gather(shard, full, shard_bytes, rank(), world());
  backend_->all_gather(shard, full, shard_bytes, label);
}

void Communicator::reduce_scatter(const ReduceScatter& call, CallLabel label) {
  comm::check_reduce_scatter(call, rank(), world());
  ReduceScatter counted = call;
  counted.contributors = call.contributors.among(world());
  if (call.balanced &&
      (call.reduction == Reduction::native || call.accumulate || call.squares.sum != nullptr))
    throw UsageError(
        fmt::format("reduce_scatter on '{}': balanced is set with {}; a balanced sum is exact, and "
                    "neither adds to the shard nor takes squares",
                    name(),
                    call.reduction == Reduction::native ? "a native reduction"
                    : call.accumulate                   ? "accumulate"
                                                        : "squares"));
  if (call.reduction == Reduction::native && !reduces_natively())
    throw UnsupportedError(fmt::format(
        "reduce_scatter on '{}': reduction is native, which only GPUs have; use exact, or bind it to one",
        name()));
  if (call.reduction == Reduction::native && counted.contributors.count < world())
    throw UnsupportedError(
        fmt::format("reduce_scatter on '{}': strategy.reduction is native, and {} of {} ranks contribute; a "
                    "native sum takes all ranks' parts, so use exact",
                    name(), counted.contributors.count, world()));
  backend_->reduce_scatter(counted, label);
}

void Communicator::all_reduce(float* data, std::int64_t numel, CallLabel label) {
  check_range("all_reduce", "elements", data, numel, sizeof *data);
  backend_->all_reduce(data, numel, label);
}

void Communicator::all_reduce(double* data, std::int64_t numel, CallLabel label) {
  check_range("all_reduce", "elements", data, numel, sizeof *data);
  backend_->all_reduce(data, numel, label);
}

void Communicator::broadcast(void* data, std::int64_t bytes, int root, CallLabel label) {
  check_range("broadcast", "bytes", data, bytes);
  check_rank("broadcast", "root", root, world());
  backend_->broadcast(data, bytes, root, label);
}

std::string broadcast_text(Communicator& world, std::string text, int root, CallLabel label) {
  auto bytes = static_cast<std::int64_t>(text.size());
  world.broadcast(&bytes, sizeof bytes, root, label);
  text.resize(static_cast<std::size_t>(bytes));
  world.broadcast(text.data(), bytes, root, label);
  return text;
}

void Communicator::all_to_all(const void* input, void* output, std::int64_t block_bytes, CallLabel label) {
  check_range("all_to_all", "bytes", input, block_bytes);
  check_range("all_to_all", "bytes", output, block_bytes, 1, world());
  if (overlap(input, block_bytes * world(), output, block_bytes * world()))
    throw UsageError("all_to_all: input and output overlap; it does not work in place");
  backend_->all_to_all(input, output, block_bytes, label);
}

void Communicator::barrier(CallLabel label) { backend_->barrier(label); }

void Communicator::send(const void* data, std::int64_t bytes, int to, CallLabel label) {
  check_range("send", "bytes", data, bytes);
  check_rank("send", "receiver", to, world());
  if (to == rank()) throw UsageError(fmt::format("send from rank {} to itself", to));
  backend_->send(data, bytes, to, label);
}

void Communicator::recv(void* data, std::int64_t bytes, int from, CallLabel label) {
  check_range("recv", "bytes", data, bytes);
  check_rank("recv", "sender", from, world());
  if (from == rank()) throw UsageError(fmt::format("recv by rank {} from itself", from));
  backend_->recv(data, bytes, from, label);
}

bool Communicator::reaches(DeviceType device) const { return backend_->reaches(device); }

void Communicator::bind(Stream& stream, const MostReduced& most) {
  if (most.numel < 0 || most.native_bytes < 0)
    throw UsageError(fmt::format("bind to stream '{}' for shards of {} elements and {} bytes: use 0 or more",
                                 stream.name(), most.numel, most.native_bytes));
  backend_->bind(stream, most);
}

bool Communicator::reduces_natively() const { return backend_->reduces_natively(); }

bool Communicator::wants_shared_arena() const { return backend_->wants_shared_arena(); }
ArenaSource Communicator::arena_source() const { return backend_->arena_source(); }
ArenaRegistration Communicator::register_arena(Arena& arena) { return backend_->register_arena(arena); }

void Communicator::fail(const std::string& message) {
  backend_->fail(global_rank(), message.empty() ? "it gave no reason" : message);
}
void Communicator::attach(FailureFlag flag) { backend_->attach(std::move(flag)); }
void Communicator::set_waiting(bool waiting) { backend_->set_waiting(waiting); }
void Communicator::set_deadline(std::chrono::milliseconds deadline) {
  backend_->set_deadline(device::checked_deadline(deadline, "deadline"));
}
std::chrono::milliseconds Communicator::deadline() const { return backend_->deadline(); }
void Communicator::set_delay(std::chrono::microseconds delay) { backend_->set_delay(delay); }
std::int64_t Communicator::bytes_received() const { return backend_->bytes_received(); }

}  // namespace tessera
