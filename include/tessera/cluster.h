// A described cluster: ranks on nodes, the links inside a node and between nodes, and what a collective costs
// on them. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

namespace tessera {

// A link: a message of n bytes takes alpha_us + n / bytes_per_us.
struct LinkCost {
  double alpha_us = 5.0;
  double bytes_per_us = 10e3;  // MB a second: 10e3 is 10 GB a second
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
  hierarchical  // a gather between nodes, each rank with those of its place on theirs, then inside them; a
                // reduction the other way round; rings both. A ring where nodes have unequal parts of the
                // group, one rank each, or all of it
};

std::string_view name_of(CollectiveAlgorithm algorithm);
std::vector<std::string_view> collective_algorithm_names();
// None for a name that is none of these.
std::optional<CollectiveAlgorithm> collective_algorithm_named(std::string_view name);

struct Cluster {
  int ranks_per_node = 0;  // ranks [k·n, (k+1)·n) are on node k; 0: all are on one
  LinkCost inside = {};    // between two ranks of a node
  LinkCost between = {};   // between ranks of two nodes; each rank has such a link of its own
  CollectiveAlgorithm algorithm = CollectiveAlgorithm::ring;

  int node_of(int rank) const { return ranks_per_node > 0 ? rank / ranks_per_node : 0; }
  const LinkCost& link(int node, int other) const { return node == other ? inside : between; }
  // UsageError for a rate that is not above 0, a latency or a count of ranks below 0.
  void check() const;
};

enum class CollectiveKind : std::uint8_t { all_gather, reduce_scatter };

// What a message from one node's rank to another's takes, in µs.
double message_us(const Cluster& cluster, double bytes, int node, int other);

// What a collective over a group takes, in µs, once all members have begun it. `nodes` is the node of each
// member, in the group's order; `full_bytes` are of all shards together. A step of an algorithm, in which
// pairs of ranks exchange at once, takes as long as its slowest pair.
double collective_us(const Cluster& cluster, CollectiveKind kind, double full_bytes,
                     std::span<const int> nodes);

}  // namespace tessera
