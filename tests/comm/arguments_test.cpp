// A caller's mistakes, which no backend gets to see.
#include <gtest/gtest.h>

#include "tessera/communicator.h"
#include "tessera/id_vector.h"

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

// What a rank gives can be counted, and what all of them give cannot.
TEST(CommunicatorArguments, MoreThanCanBeCountedIsRefused) {
  Communicator rank0 = make_local_world(2)[0];
  float data[4] = {};
  double wide[4] = {};
  const auto refused = [](const std::string& most, const auto& call) {
    try {
      call();
    } catch (const UsageError& error) {
      EXPECT_NE(std::string(error.what()).find(": use " + most + " or less"), std::string::npos)
          << error.what();
      return;
    }
    ADD_FAILURE() << "accepted";
  };
  constexpr std::int64_t kHalf = std::int64_t{1} << 62, kEighth = kHalf / 4;
  refused("4611686018427387903", [&] { rank0.all_gather(data, data + 1, kHalf); });
  refused("4611686018427387903", [&] { rank0.all_to_all(data, data + 1, kHalf); });
  refused("1152921504606846975",
          [&] { rank0.reduce_scatter({.full = data, .shard = data + 1, .shard_numel = kEighth}); });
  refused("2305843009213693951", [&] { rank0.all_reduce(data, kHalf); });
  refused("1152921504606846975", [&] { rank0.all_reduce(wide, kEighth); });
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

TEST(CommunicatorArguments, OnlyContributorsGiveABuffer) {
  IdVector<Communicator> world = make_local_world(2);
  float data[64] = {};
  const auto refused = [&](int rank, const ReduceScatter& call, const std::string& why) {
    try {
      world[rank].reduce_scatter(call);
      ADD_FAILURE() << "accepted: " << why;
    } catch (const UsageError& error) {
      EXPECT_NE(std::string(error.what()).find(why), std::string::npos) << error.what();
    }
  };
  ReduceScatter call{.full = data, .shard = data + 32, .shard_numel = 8, .contributors = {.count = 3}};
  refused(0, call, "3 contributors from rank 0 on: the group has 2 ranks; use 1 to 2, within the group");
  call.contributors.count = -1;
  refused(0, call, "-1 contributors");
  call.contributors = {.first = 1, .count = 2};
  refused(0, call, "2 contributors from rank 1 on: the group has 2 ranks");
  call.contributors = {.first = 1};
  refused(0, call, "0 contributors from rank 1 on: the group has 2 ranks");
  call.contributors = {.first = 1, .count = 1};
  refused(0, call, "rank 0 is not among them, so its full buffer must be null");
  call.contributors = {.count = 1};
  refused(1, call, "rank 1 is not among them, so its full buffer must be null");
  call.full = nullptr;
  refused(0, call, "at a null pointer");
  call.shard = nullptr;
  refused(1, call, "at a null pointer");
}

TEST(CommunicatorArguments, SquaresLieApart) {
  Communicator rank0 = make_local_world(2)[0];
  alignas(8) float data[64] = {};
  ReduceScatter call{.full = data, .shard = data + 32, .shard_numel = 8};
  for (float* const place : {data, data + 14, data + 32, data + 38}) {
    call.squares.sum = reinterpret_cast<SquareSum*>(place);
    EXPECT_THROW(rank0.reduce_scatter(call), UsageError) << place - data;
  }
}

TEST(LocalWorld, RefusesNoRanks) {
  EXPECT_THROW(make_local_world(0), UsageError);
  EXPECT_THROW(run_local(0, {}, [](Communicator) {}), UsageError);
}

TEST(LocalWorld, RefusesToRunNothing) { EXPECT_THROW(run_local(2, {}, nullptr), UsageError); }

}  // namespace
}  // namespace tessera
