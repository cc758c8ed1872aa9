// Counts every operator new of the process, so that collectives can be shown to need none.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <new>

#include "tessera/communicator.h"

namespace {
std::atomic<std::int64_t> allocations{0};
}

void* operator new(std::size_t bytes) {
  allocations.fetch_add(1);
  if (void* memory = std::malloc(bytes)) return memory;
  throw std::bad_alloc();
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

namespace tessera {
namespace {

TEST(LocalAllocations, NonePerCall) {
  run_local(3, {}, [](Communicator ranks) {
    std::vector<float> full(3000), shard(1000), out(3000);
    const auto round = [&] {
      ranks.all_gather(shard.data(), full.data(), 4000, {.unit = "block.0"});
      ranks.reduce_scatter({.full = full.data(), .shard = shard.data(), .shard_numel = 1000},
                           {.unit = "block.0"});
      ranks.all_reduce(full.data(), 100);
      ranks.all_to_all(full.data(), out.data(), 4000);
      ranks.broadcast(full.data(), 4000, 1);
      if (ranks.rank() == 0) ranks.send(full.data(), 400, 1);
      if (ranks.rank() == 1) ranks.recv(full.data(), 400, 0);
      ranks.barrier();
    };
    round();  // the channels of send and recv are made when first used
    const std::int64_t before = allocations.load();
    ranks.barrier();
    for (int i = 0; i < 50; ++i) round();
    EXPECT_EQ(allocations.load() - before, 0);
    ranks.barrier();
  });
}

}  // namespace
}  // namespace tessera
