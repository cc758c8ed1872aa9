// Collectives of ranks that read each other's buffers: each rank pulls what it needs from where its peers
// have it. Whether peers are threads or processes, and how they meet, is the derived class's business.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

#include "kernels/copy.h"
#include "tessera/communicator.h"
#include "tessera/id_vector.h"

namespace tessera::comm {

inline const char* at(const void* base, std::int64_t bytes) { return static_cast<const char*>(base) + bytes; }
inline char* at(void* base, std::int64_t bytes) { return static_cast<char*>(base) + bytes; }

// Calls use(peer) for every rank but `own`, beginning behind it so that not all turn to the same one.
template <class Use>
void for_each_peer(int own, int ranks, const Use& use) {
  for (int step = 1; step < ranks; ++step) use((own + step) % ranks);
}

// A range shared out over ranks: one slice each, all as long but for the last ones, which may be shorter or
// empty.
struct Slices {
  // Every slice begins at a multiple of `unit`.
  Slices(std::int64_t range_numel, int ranks, std::int64_t unit = 1)
      : numel(range_numel), longest((range_numel + ranks * unit - 1) / (ranks * unit) * unit) {}

  std::int64_t begin_of(int rank) const { return std::min(numel, rank * longest); }
  std::int64_t numel_of(int rank) const { return begin_of(rank + 1) - begin_of(rank); }

  std::int64_t numel, longest;
};

// Called within a collective, when all ranks have published their buffers; all meet once more before any of
// them leaves. Each function takes what this rank receives and returns the bytes that came from peers.
class Puller {
 public:
  virtual ~Puller() = default;

  // This rank's own shard lies in `full` already.
  std::int64_t pull_all_gather(void* full, std::int64_t shard_bytes);
  // What ranks publish that do not contribute is not read.
  std::int64_t pull_reduce_scatter(const ReduceScatter& request);
  // `data` is what this rank published.
  std::int64_t pull_all_reduce(float* data, std::int64_t numel);
  std::int64_t pull_all_reduce(double* data, std::int64_t numel);
  std::int64_t pull_broadcast(void* data, std::int64_t bytes, int root);
  // This rank's own block lies in `output` already.
  std::int64_t pull_all_to_all(void* output, std::int64_t block_bytes);

 protected:
  explicit Puller(int ranks) : sources_(ranks) {}

 private:
  virtual int own_rank() const = 0;
  // What `rank` published, as this rank addresses it.
  virtual const void* source(int rank) const = 0;
  // Around every access to sources. start_reading() throws where the world has failed: the owners may be
  // leaving.
  virtual void start_reading() = 0;
  virtual void stop_reading() noexcept = 0;
  virtual void meet() = 0;

  int ranks() const { return sources_.count(); }
  template <class Copies>
  void read(const Copies& copies);
  // for_each_peer(), reading.
  template <class Copy>
  void each_peer(const Copy& copy);
  // What the first `count` ranks published, moved on by `offset_bytes`.
  std::span<const void*> sources(const Contributors& of, std::int64_t offset_bytes);
  template <class Element>
  std::int64_t reduce_everywhere(Element* data, std::int64_t numel);

  IdVector<const void*> sources_;  // scratch of sources()
};

}  // namespace tessera::comm
