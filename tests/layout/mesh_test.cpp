#include "tessera/mesh.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <set>

#include "tessera/error.h"

namespace tessera {
namespace {

const Mesh kMesh{.pipeline = 2, .replicate = 3, .shard = 4, .tensor = 5};

TEST(Mesh, RanksAndCoordinatesRoundTrip) {
  std::set<Coordinates> seen;
  for (int rank = 0; rank < kMesh.world(); ++rank) {
    const Coordinates place = kMesh.coordinates(rank);
    EXPECT_EQ(kMesh.rank(place), rank);
    EXPECT_TRUE(seen.insert(place).second);
    EXPECT_EQ(rank, ((place[0] * 3 + place[1]) * 4 + place[2]) * 5 + place[3]);
  }
}

TEST(Mesh, GroupsPartitionTheWorldAlongEveryAxis) {
  for (Axis axis : {Axis::pipeline, Axis::replicate, Axis::shard, Axis::tensor}) {
    std::set<std::vector<int>> groups;
    std::set<int> members;
    for (int rank = 0; rank < kMesh.world(); ++rank) {
      const std::vector<int> group = kMesh.group(axis, rank);
      EXPECT_EQ(static_cast<int>(group.size()), kMesh.extent(axis));
      EXPECT_TRUE(std::ranges::is_sorted(group));
      EXPECT_EQ(group[static_cast<std::size_t>(kMesh.coordinates(rank)[static_cast<std::size_t>(axis)])],
                rank);
      groups.insert(group);
      members.insert(group.begin(), group.end());
    }
    EXPECT_EQ(static_cast<int>(groups.size()), kMesh.world() / kMesh.extent(axis));
    EXPECT_EQ(static_cast<int>(members.size()), kMesh.world());
  }
}

TEST(Mesh, TensorIsFastest) {
  EXPECT_EQ(kMesh.group(Axis::tensor, 7), (std::vector<int>{5, 6, 7, 8, 9}));
  EXPECT_EQ(kMesh.group(Axis::shard, 7), (std::vector<int>{2, 7, 12, 17}));
  EXPECT_EQ(kMesh.group(Axis::pipeline, 7), (std::vector<int>{7, 67}));
}

TEST(Mesh, Text) {
  EXPECT_EQ(to_string(Mesh{}), "one rank");
  EXPECT_EQ(to_string(Mesh{.shard = 2}), "shard 2");
  EXPECT_EQ(to_string(Mesh{.pipeline = 2, .shard = 4}), "pipeline 2 × shard 4");
}

std::string refusal(const Mesh& mesh, int world) {
  try {
    mesh.check(world);
  } catch (const UsageError& error) {
    return error.what();
  }
  return "accepted";
}

TEST(Mesh, Check) {
  EXPECT_EQ(refusal(kMesh, 120), "accepted");
  EXPECT_EQ(refusal(Mesh{.shard = 4}, 2),
            "mesh shard 4 has 4 ranks, but the world has 2; the product of its axes must equal the world");
  EXPECT_EQ(refusal(Mesh{.shard = 0}, 1), "mesh.shard is 0; it must be 1 or more");
  EXPECT_EQ(refusal(Mesh{.replicate = -2, .shard = -1}, 2), "mesh.replicate is -2; it must be 1 or more");
  EXPECT_EQ(refusal(Mesh{.shard = Mesh::kMostRanks}, Mesh::kMostRanks), "accepted");
  EXPECT_EQ(
      refusal(Mesh{.replicate = 65536, .shard = 65536}, 0),
      "mesh replicate 65536 × shard 65536 has too many ranks; the product of its axes must be 1048576 or "
      "less");
  EXPECT_NE(refusal(Mesh{.pipeline = 1 << 30, .replicate = 1 << 30, .shard = 16, .tensor = 1}, 0),
            "accepted");
}

TEST(Mesh, HasNoCountOfRanksWhereItWouldOverflow) {
  for (const int most : {65536, std::numeric_limits<int>::max()}) {
    const Mesh mesh{.replicate = most, .shard = most};
    EXPECT_THROW(mesh.world(), UsageError);
    EXPECT_THROW(mesh.data_ranks(), UsageError);
    EXPECT_THROW(mesh.coordinates(0), UsageError);
    EXPECT_THROW(mesh.group(Axis::shard, 0), UsageError);
  }
}

TEST(Mesh, RanksAndCoordinatesOutsideAreRefused) {
  EXPECT_THROW(kMesh.coordinates(-1), UsageError);
  EXPECT_THROW(kMesh.coordinates(120), UsageError);
  EXPECT_THROW(kMesh.rank({0, 3, 0, 0}), UsageError);
  EXPECT_THROW(kMesh.group(Axis::shard, 120), UsageError);
}

TEST(Rounds, DealMicrobatchesToRanksInTurn) {
  for (int ranks = 1; ranks <= 9; ++ranks)
    for (int microbatches = 1; microbatches <= 20; ++microbatches) {
      const Mesh mesh{.shard = ranks};
      const Rounds rounds = Rounds::of(microbatches, mesh);
      EXPECT_EQ(rounds.microbatches(mesh), microbatches);
      for (int rank = 0; rank < ranks; ++rank) {
        int own = 0;
        for (int microbatch = rank; microbatch < microbatches; microbatch += ranks)
          EXPECT_EQ(rounds.number(mesh, rank, own++), microbatch);
        EXPECT_EQ(rounds.microbatches(mesh, rank), own)
            << microbatches << " on rank " << rank << " of " << ranks;
      }
    }
  EXPECT_EQ(Rounds::of(12, {.shard = 4}), (Rounds{.count = 3, .last_ranks = 0}));
  EXPECT_THROW(Rounds::of(0, {.shard = 4}), UsageError);
  EXPECT_THROW(Rounds::of((std::int64_t{1} << 31) * 4, {.shard = 4}), UsageError);
}

// Each replica has consecutive microbatches, and all of them together each once.
TEST(Rounds, WithBlocksDealToReplicasInRows) {
  for (const int replicas : {1, 2, 4})
    for (int shards = 1; shards <= 6; ++shards)
      for (int microbatches = 4; microbatches <= 24; microbatches += 4) {
        const Mesh mesh{.pipeline = 2, .replicate = replicas, .shard = shards};
        const Rounds rounds = Rounds::of(microbatches, mesh, 4);
        EXPECT_EQ(rounds.microbatches(mesh), microbatches);
        const int each = microbatches / replicas;
        std::vector<int> times(static_cast<std::size_t>(microbatches));
        for (int rank = 0; rank < mesh.data_ranks(); ++rank)
          for (int round = 0; round < rounds.microbatches(mesh, rank); ++round) {
            const std::int64_t number = rounds.number(mesh, rank, round);
            EXPECT_EQ(number, rank / shards * each + round * shards + rank % shards);
            ++times.at(static_cast<std::size_t>(number));
          }
        EXPECT_EQ(times, std::vector<int>(times.size(), 1));
      }
  EXPECT_THROW(Rounds::of(6, {.replicate = 2}, 4), UsageError);
  EXPECT_THROW(Rounds::of(8, {.replicate = 3}, 4), UsageError);
}

}  // namespace
}  // namespace tessera
