#include "src/comm/puller.h"

#include "src/comm/ordered_chain.h"

namespace tessera::comm {

template <class Copies>
void Puller::read(const Copies& copies) {
  struct Guard {
    explicit Guard(Puller& reader) : puller(reader) { puller.start_reading(); }
    ~Guard() { puller.stop_reading(); }
    Guard(const Guard&) = delete;
    Guard& operator=(const Guard&) = delete;
    Puller& puller;
  };
  const Guard guard(*this);
  copies();
}

template <class Copy>
void Puller::each_peer(const Copy& copy) {
  read([&] { for_each_peer(own_rank(), ranks(), copy); });
}

std::span<const void*> Puller::sources(const Contributors& of, std::int64_t offset_bytes) {
  for (int k = 0; k < of.count; ++k) sources_[k] = at(source(of.first + k), offset_bytes);
  return std::span(sources_).first(static_cast<std::size_t>(of.count));
}

std::int64_t Puller::pull_all_gather(void* full, std::int64_t shard_bytes) {
  each_peer([&](int peer) { kernels::copy(at(full, peer * shard_bytes), source(peer), shard_bytes); });
  return (ranks() - 1) * shard_bytes;
}

std::int64_t Puller::pull_reduce_scatter(const ReduceScatter& request) {
  const std::int64_t slice_bytes = request.shard_numel * bytes_of(request.wire);
  read([&] {
    reduce(request, sources(request.contributors, own_rank() * slice_bytes), request.shard_numel,
           request.shard, request.squares);
  });
  return contributed_bytes(request, own_rank());
}

// Each rank sums its slice in place, which no peer reads then, and pulls the other slices when all have
// summed.
template <class Element>
std::int64_t Puller::reduce_everywhere(Element* data, std::int64_t numel) {
  constexpr auto kWidth = static_cast<std::int64_t>(sizeof(Element));
  const Slices slices(numel, ranks(), 64 / kWidth);  // of whole cache lines
  const std::int64_t begin = slices.begin_of(own_rank()), own = slices.numel_of(own_rank());
  if (own > 0) read([&] { sum_into(sources({.count = ranks()}, begin * kWidth), own, data + begin); });
  meet();
  each_peer([&](int peer) {
    const std::int64_t offset = slices.begin_of(peer) * kWidth;
    kernels::copy(at(data, offset), at(source(peer), offset), slices.numel_of(peer) * kWidth);
  });
  return ((ranks() - 1) * own + numel - own) * kWidth;
}

std::int64_t Puller::pull_all_reduce(float* data, std::int64_t numel) {
  return reduce_everywhere(data, numel);
}

std::int64_t Puller::pull_all_reduce(double* data, std::int64_t numel) {
  return reduce_everywhere(data, numel);
}

std::int64_t Puller::pull_broadcast(void* data, std::int64_t bytes, int root) {
  if (own_rank() == root) return 0;
  read([&] { kernels::copy(data, source(root), bytes); });
  return bytes;
}

std::int64_t Puller::pull_all_to_all(void* output, std::int64_t block_bytes) {
  each_peer([&](int peer) {
    kernels::copy(at(output, peer * block_bytes), at(source(peer), own_rank() * block_bytes), block_bytes);
  });
  return (ranks() - 1) * block_bytes;
}

}  // namespace tessera::comm
