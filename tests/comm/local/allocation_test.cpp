#include <gtest/gtest.h>

#include "tessera/communicator.h"
#include "tests/device/count_allocations.h"

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
    const std::int64_t before = allocations_so_far();
    ranks.barrier();
    for (int i = 0; i < 50; ++i) round();
    EXPECT_EQ(allocations_so_far() - before, 0);
    ranks.barrier();
  });
}

}  // namespace
}  // namespace tessera
