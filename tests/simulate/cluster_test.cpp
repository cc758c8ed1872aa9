// What collectives cost on a described cluster: each algorithm's formula, and where nodes come in.
#include "tessera/cluster.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <vector>

#include "tessera/error.h"

namespace tessera {
namespace {

using enum CollectiveAlgorithm;
using enum CollectiveKind;

constexpr double kAlpha = 3, kRate = 64, kBytes = 7680;

Cluster one_node(CollectiveAlgorithm algorithm) {
  return {.inside = {.alpha_us = kAlpha, .bytes_per_us = kRate},
          .between = {.alpha_us = 100, .bytes_per_us = 1},
          .algorithm = algorithm};
}

double alone(CollectiveAlgorithm algorithm, CollectiveKind kind, int ranks) {
  return collective_us(one_node(algorithm), kind, kBytes, std::vector<int>(static_cast<std::size_t>(ranks)));
}

TEST(CollectiveCost, IsTheFormulaOnOneNode) {
  const double beta = kBytes / kRate;  // nβ
  for (int ranks = 2; ranks <= 33; ++ranks) {
    const double share = (ranks - 1.0) / ranks;
    const double up = std::ceil(std::log2(ranks)), down = std::floor(std::log2(ranks));
    const bool power = std::has_single_bit(static_cast<unsigned>(ranks));
    for (const CollectiveKind kind : {all_gather, reduce_scatter}) {
      EXPECT_NEAR(alone(ring, kind, ranks), (ranks - 1) * kAlpha + share * beta, 1e-9) << ranks;
      EXPECT_NEAR(alone(tree, kind, ranks), 2 * up * kAlpha + (up + share) * beta, 1e-9) << ranks;
      EXPECT_EQ(alone(hierarchical, kind, ranks), alone(ring, kind, ranks)) << ranks;
    }
    EXPECT_NEAR(alone(recursive, all_gather, ranks), up * kAlpha + share * beta, 1e-9) << ranks;
    EXPECT_NEAR(alone(recursive, reduce_scatter, ranks),
                power ? up * kAlpha + share * beta : (down + 2) * kAlpha + 2 * beta, 1e-9)
        << ranks;
  }
}

TEST(CollectiveCost, OfOneRankIsNothing) {
  for (const std::string_view name : collective_algorithm_names())
    for (const CollectiveKind kind : {all_gather, reduce_scatter})
      EXPECT_EQ(alone(collective_algorithm_named(name).value(), kind, 1), 0) << name;
}

TEST(CollectiveAlgorithm, IsFoundByItsName) {
  EXPECT_EQ(collective_algorithm_names().size(), 4u);
  for (const std::string_view name : collective_algorithm_names())
    EXPECT_EQ(name_of(collective_algorithm_named(name).value()), name);
  EXPECT_EQ(collective_algorithm_named("rings"), std::nullopt);
}

// Two nodes of two ranks: a ring's every step waits for the slow link; doubling goes over it once, with half
// of the bytes; a tree once on each way; in the hierarchical one each rank gets one shard over it.
TEST(CollectiveCost, FollowsTheNodesOfTheGroup) {
  Cluster cluster{.ranks_per_node = 2,
                  .inside = {.alpha_us = 1, .bytes_per_us = 100},
                  .between = {.alpha_us = 10, .bytes_per_us = 20}};
  const std::vector<int> nodes = {0, 0, 1, 1};
  const auto us = [&](CollectiveAlgorithm algorithm) {
    cluster.algorithm = algorithm;
    return collective_us(cluster, all_gather, 400, nodes);
  };
  EXPECT_DOUBLE_EQ(us(ring), 3 * (10 + 100 / 20.0));
  EXPECT_DOUBLE_EQ(us(recursive), (1 + 100 / 100.0) + (10 + 200 / 20.0));
  EXPECT_DOUBLE_EQ(us(tree), (1 + 100 / 100.0) + (10 + 200 / 20.0) + (1 + 400 / 100.0) + (10 + 400 / 20.0));
  EXPECT_DOUBLE_EQ(us(hierarchical), (10 + 100 / 20.0) + (1 + 200 / 100.0));
  // A group across the nodes, one rank on each, and one inside: rings of one kind of link.
  for (const CollectiveAlgorithm algorithm : {ring, hierarchical}) {
    cluster.algorithm = algorithm;
    EXPECT_DOUBLE_EQ(collective_us(cluster, reduce_scatter, 400, std::vector{0, 1}), 10 + 200 / 20.0);
    EXPECT_DOUBLE_EQ(collective_us(cluster, reduce_scatter, 400, std::vector{1, 1}), 1 + 200 / 100.0);
    EXPECT_DOUBLE_EQ(collective_us(cluster, reduce_scatter, 400, std::vector{0, 0, 1}),
                     2 * (10 + 400 / 3.0 / 20.0));
  }
}

// Three of four ranks fold to two; the fold lies inside a node, what follows crosses.
TEST(CollectiveCost, FoldsAGroupThatIsNoPowerOfTwo) {
  const Cluster cluster{.ranks_per_node = 2,
                        .inside = {.alpha_us = 1, .bytes_per_us = 100},
                        .between = {.alpha_us = 10, .bytes_per_us = 20},
                        .algorithm = recursive};
  EXPECT_DOUBLE_EQ(collective_us(cluster, reduce_scatter, 600, std::vector{0, 0, 1}),
                   (1 + 600 / 100.0) + (10 + 300 / 20.0) + (1 + 300 / 100.0));
}

TEST(CollectiveCost, HierarchicalBeatsTheFlatRingAcrossSlowLinks) {
  for (int per_node = 2; per_node <= 16; per_node *= 2)
    for (int count = 2; count <= 64; count *= 2) {
      Cluster cluster{.ranks_per_node = per_node,
                      .inside = {.alpha_us = 2, .bytes_per_us = 200e3},
                      .between = {.alpha_us = 10, .bytes_per_us = 20e3}};
      std::vector<int> nodes;
      for (int rank = 0; rank < per_node * count; ++rank) nodes.push_back(cluster.node_of(rank));
      for (const double bytes : {1e3, 1e6, 1e9}) {
        cluster.algorithm = ring;
        const double flat = collective_us(cluster, all_gather, bytes, nodes);
        cluster.algorithm = hierarchical;
        EXPECT_LT(collective_us(cluster, all_gather, bytes, nodes), flat) << per_node << " " << count;
      }
    }
}

TEST(Cluster, MessagesTakeTheLinkBetweenTheirEnds) {
  const Cluster cluster{.ranks_per_node = 4,
                        .inside = {.alpha_us = 1, .bytes_per_us = 100},
                        .between = {.alpha_us = 10, .bytes_per_us = 20}};
  EXPECT_DOUBLE_EQ(message_us(cluster, 200, cluster.node_of(4), cluster.node_of(7)), 3);
  EXPECT_DOUBLE_EQ(message_us(cluster, 200, cluster.node_of(3), cluster.node_of(4)), 20);
  EXPECT_EQ(Cluster{}.node_of(1000), 0);
}

TEST(Cluster, NamesWhatIsWrong) {
  const auto refusal = [](const Cluster& cluster) -> std::string {
    try {
      cluster.check();
    } catch (const UsageError& error) {
      return error.what();
    }
    return {};
  };
  EXPECT_EQ(refusal({}), "");
  EXPECT_NE(refusal({.ranks_per_node = -1}).find("ranks_per_node is -1"), std::string::npos);
  EXPECT_NE(refusal({.between = {.bytes_per_us = 0}}).find("cluster.between.bytes_per_us is 0"),
            std::string::npos);
  EXPECT_NE(refusal({.inside = {.alpha_us = -2}}).find("cluster.inside.alpha_us is -2"), std::string::npos);
}

}  // namespace
}  // namespace tessera
