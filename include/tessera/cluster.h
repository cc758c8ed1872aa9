// A description of a cluster: which ranks are on which node, the links inside and between nodes, and the time
// that a collective takes on them. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

namespace tessera {

// A link. A message of n bytes takes alpha_us + n / bytes_per_us, in µs.
struct LinkCost {
  double alpha_us = 5.0;
  double bytes_per_us = 10e3;  // the same number is MB/s: 10e3 is 10 GB/s
};

// How a collective over p ranks moves its n bytes (all shards together). Formulas of Thakur, Rabenseifner and
// Gropp 2005, "Optimization of collective communication operations in MPICH", without the arithmetic of sums;
// α and β are a link's alpha_us and 1 / bytes_per_us.
enum class CollectiveAlgorithm : std::uint8_t {
  ring,       // (p−1)α + (p−1)/p nβ
  tree,       // binomial, through the group's first rank: gather and broadcast, or reduce and scatter:
              // 2⌈lg p⌉α + (⌈lg p⌉ + (p−1)/p) nβ
  recursive,  // doubling or halving: lg p α + (p−1)/p nβ. Where p is no power of two, a gather is Bruck's,
              // ⌈lg p⌉α + (p−1)/p nβ, and a reduction folds its ranks to one: (⌊lg p⌋ + 2)α + 2nβ
  hierarchical  // rings between nodes, each of the ranks with equal places on their nodes, and rings inside
                // nodes. A gather runs between nodes first, a reduction inside nodes first. A single ring if
                // nodes have unequal parts of the group, one rank each, or all of it
};

std::string_view name_of(CollectiveAlgorithm algorithm);
std::vector<std::string_view> collective_algorithm_names();
// Nothing for any other name.
std::optional<CollectiveAlgorithm> collective_algorithm_named(std::string_view name);

struct Cluster {
  int ranks_per_node = 0;  // n: ranks [k·n, (k+1)·n) are on node k. 0: all ranks are on one node
  LinkCost inside = {};    // between two ranks of a node
  LinkCost between = {};   // between ranks of two nodes; each rank has its own link
  CollectiveAlgorithm algorithm = CollectiveAlgorithm::ring;

  int node_of(int rank) const { return ranks_per_node > 0 ? rank / ranks_per_node : 0; }
  const LinkCost& link(int node, int other) const { return node == other ? inside : between; }
  // Throws UsageError for a rate that is not above 0, or a latency or ranks_per_node below 0.
  void check() const;
};

enum class CollectiveKind : std::uint8_t { all_gather, reduce_scatter };

// The time of a message from a rank on `node` to a rank on `other`, in µs.
double message_us(const Cluster& cluster, double bytes, int node, int other);

// The time of a collective over a group, in µs, once all members have begun it. `nodes` is the node of each
// member, in the group's order. `full_bytes` counts all shards together. In one step of an algorithm several
// pairs of ranks exchange at the same time; the step takes as long as its slowest pair.
double collective_us(const Cluster& cluster, CollectiveKind kind, double full_bytes,
                     std::span<const int> nodes);

}  // namespace tessera
