// A caller's mistakes, which no backend gets to see.
#include <gtest/gtest.h>

#include "tessera/communicator.h"

namespace tessera {
namespace {

TEST(CommunicatorArguments, AreCheckedBeforeAnyPeerIsInvolved) {
  Communicator rank0 =
      make_local_world(2)[0];  // rank 1 never calls: a check that came late would wait for it
  float data[64] = {};
  char* bytes = reinterpret_cast<char*>(data);
  EXPECT_THROW(rank0.all_gather(data, data, -1), UsageError);
  EXPECT_THROW(rank0.all_gather(nullptr, data, 4), UsageError);
  EXPECT_THROW(rank0.all_gather(bytes + 4, bytes, 16), UsageError) << "overlaps, not in place";
  EXPECT_THROW(rank0.broadcast(data, 4, 2), UsageError);
  EXPECT_THROW(rank0.broadcast(data, 4, -1), UsageError);
  EXPECT_THROW(rank0.all_to_all(data, bytes + 8, 8), UsageError);
  EXPECT_THROW(rank0.send(data, 4, 0), UsageError) << "to itself";
  EXPECT_THROW(rank0.recv(data, 4, 2), UsageError);
  EXPECT_THROW(rank0.all_reduce(static_cast<float*>(nullptr), 1), UsageError);
}

TEST(CommunicatorArguments, ReduceScatterInPlaceOnlyWhereItIsExact) {
  Communicator rank0 = make_local_world(2)[0];
  float data[64] = {};
  EXPECT_THROW(rank0.reduce_scatter({.full = data, .shard = data, .shard_numel = 8, .accumulate = true}),
               UsageError);
  EXPECT_THROW(rank0.reduce_scatter({.full = data, .wire = DType::bf16, .shard = data, .shard_numel = 8}),
               UsageError);
  EXPECT_THROW(rank0.reduce_scatter({.full = data, .shard = data + 8, .shard_numel = 8}), UsageError)
      << "the slice of another rank";
  EXPECT_THROW(rank0.reduce_scatter({.full = data, .shard = data + 15, .shard_numel = 8}), UsageError);
}

TEST(LocalWorld, RefusesNoRanks) {
  EXPECT_THROW(make_local_world(0), UsageError);
  EXPECT_THROW(run_local(0, {}, [](Communicator) {}), UsageError);
}

TEST(LocalWorld, RefusesToRunNothing) { EXPECT_THROW(run_local(2, {}, nullptr), UsageError); }

}  // namespace
}  // namespace tessera
