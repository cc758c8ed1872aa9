// Collectives of ranks that read each other's buffers: each rank pulls what it needs from where its peers
// have it. Whether peers are threads or processes, and how they meet, is the derived class's business.
#pragma once

#include <span>
#include <vector>

#include "kernels/copy.h"
#include "tessera/communicator.h"

namespace tessera::comm {

inline const char* at(const void* base, std::int64_t bytes) { return static_cast<const char*>(base) + bytes; }
inline char* at(void* base, std::int64_t bytes) { return static_cast<char*>(base) + bytes; }

// Called within a collective, when all ranks have published their buffers; all meet once more before any of
// them leaves. Each function takes what this rank receives and returns the bytes that came from peers.
class Puller {
 public:
  virtual ~Puller() = default;

  // This rank's own shard lies in `full` already.
  std::int64_t pull_all_gather(void* full, std::int64_t shard_bytes);
  std::int64_t pull_reduce_scatter(const ReduceScatter& request);
  // `data` is what this rank published.
  std::int64_t pull_all_reduce(float* data, std::int64_t numel);
  std::int64_t pull_all_reduce(double* data, std::int64_t numel);
  std::int64_t pull_broadcast(void* data, std::int64_t bytes, int root);
  // This rank's own block lies in `output` already.
  std::int64_t pull_all_to_all(void* output, std::int64_t block_bytes);

 protected:
  explicit Puller(int ranks) : sources_(static_cast<std::size_t>(ranks)) {}

 private:
  virtual int own_rank() const = 0;
  // What `rank` published, as this rank addresses it.
  virtual const void* source(int rank) const = 0;
  // Around every access to sources. start_reading() throws where the world has failed: the owners may be
  // leaving.
  virtual void start_reading() = 0;
  virtual void stop_reading() noexcept = 0;
  virtual void meet() = 0;

  int ranks() const { return static_cast<int>(sources_.size()); }
  template <class Copies>
  void read(const Copies& copies);
  // Calls copy(peer) for every peer, beginning behind this rank so that not all pull from the same one.
  template <class Copy>
  void each_peer(const Copy& copy);
  // What the ranks published, moved on by `offset_bytes`.
  std::span<const void*> sources(std::int64_t offset_bytes);
  template <class Element>
  std::int64_t reduce_everywhere(Element* data, std::int64_t numel);

  std::vector<const void*> sources_;  // scratch of sources()
};

}  // namespace tessera::comm
