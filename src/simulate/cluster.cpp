#include "tessera/cluster.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <map>
#include <vector>

#include "tessera/error.h"
#include "tessera/id_vector.h"

namespace tessera {
namespace {

struct AlgorithmRow {
  CollectiveAlgorithm algorithm;
  std::string_view name;
};

constexpr std::array<AlgorithmRow, 4> kAlgorithms = {{
    {CollectiveAlgorithm::ring, "ring"},
    {CollectiveAlgorithm::tree, "tree"},
    {CollectiveAlgorithm::recursive, "recursive"},
    {CollectiveAlgorithm::hierarchical, "hierarchical"},
}};

using Nodes = IdSpan<const int>;  // of a group's members, in its order

double over(const LinkCost& link, double bytes) { return link.alpha_us + bytes / link.bytes_per_us; }

// One step: pairs exchange `bytes` each, at once. `peer_of` gives the member that a member sends to, or −1.
template <typename PeerOf>
double step_us(const Cluster& cluster, Nodes nodes, double bytes, PeerOf peer_of) {
  const int members = nodes.count();
  double slowest = 0;
  for (int member = 0; member < members; ++member) {
    const int peer = peer_of(member);
    if (peer < 0 || peer >= members) continue;
    const LinkCost& link = cluster.link(nodes[member], nodes[peer]);
    slowest = std::max(slowest, over(link, bytes));
  }
  return slowest;
}

double ring_us(const Cluster& cluster, double full_bytes, Nodes nodes) {
  const int members = nodes.count();
  return (members - 1) *
         step_us(cluster, nodes, full_bytes / members, [&](int member) { return (member + 1) % members; });
}

// Gather and broadcast; reduce and scatter are the same steps backwards.
double tree_us(const Cluster& cluster, double full_bytes, Nodes nodes) {
  const int members = nodes.count();
  const double block = full_bytes / members;
  double total = 0;
  for (int distance = 1; distance < members; distance *= 2) {
    const auto peer_of = [&](int member) { return member % (2 * distance) == 0 ? member + distance : -1; };
    total += step_us(cluster, nodes, std::min(distance, members - distance) * block, peer_of) +
             step_us(cluster, nodes, full_bytes, peer_of);
  }
  return total;
}

// Pairs that differ in one bit of their place. Of the group's `members`, a power of two.
double doubling_us(const Cluster& cluster, double full_bytes, Nodes nodes) {
  const int members = nodes.count();
  double total = 0;
  for (int distance = 1; distance < members; distance *= 2)
    total += step_us(cluster, nodes, full_bytes * distance / members,
                     [&](int member) { return member ^ distance; });
  return total;
}

double bruck_us(const Cluster& cluster, double full_bytes, Nodes nodes) {
  const int members = nodes.count();
  double total = 0;
  for (int distance = 1; distance < members; distance *= 2)
    total += step_us(cluster, nodes, full_bytes * std::min(distance, members - distance) / members,
                     [&](int member) { return (member + members - distance) % members; });
  return total;
}

// The first few give all they have to a neighbour, and get their part of the result from it.
double folded_halving_us(const Cluster& cluster, double full_bytes, Nodes nodes) {
  const int members = nodes.count();
  const int left = static_cast<int>(std::bit_floor(nodes.size()));
  const int folded = members - left;
  std::vector<int> rest;
  for (int member = 0; member < members; ++member)
    if (member >= 2 * folded || member % 2 == 1) rest.push_back(nodes[member]);
  const auto neighbour = [&](int member) { return member < 2 * folded && member % 2 == 0 ? member + 1 : -1; };
  return step_us(cluster, nodes, full_bytes, neighbour) + doubling_us(cluster, full_bytes, rest) +
         step_us(cluster, nodes, full_bytes / left, neighbour);
}

double recursive_us(const Cluster& cluster, CollectiveKind kind, double full_bytes, Nodes nodes) {
  if (std::has_single_bit(nodes.size())) return doubling_us(cluster, full_bytes, nodes);
  return kind == CollectiveKind::all_gather ? bruck_us(cluster, full_bytes, nodes)
                                            : folded_halving_us(cluster, full_bytes, nodes);
}

double hierarchical_us(const Cluster& cluster, double full_bytes, Nodes nodes) {
  std::map<int, int> counts;
  for (const int node : nodes) ++counts[node];
  const int inside = counts.begin()->second;
  const bool equal = std::ranges::all_of(counts, [&](const auto& of) { return of.second == inside; });
  if (!equal || counts.size() == 1 || inside == 1) return ring_us(cluster, full_bytes, nodes);
  const double groups = static_cast<double>(counts.size());
  return (groups - 1) * over(cluster.between, full_bytes / static_cast<double>(nodes.size())) +
         (inside - 1) * over(cluster.inside, full_bytes / inside);
}

void check_link(const char* which, const LinkCost& link) {
  if (!(link.bytes_per_us > 0))
    throw UsageError(
        fmt::format("cluster.{}.bytes_per_us is {}; it must be above 0", which, link.bytes_per_us));
  if (!(link.alpha_us >= 0))
    throw UsageError(fmt::format("cluster.{}.alpha_us is {}; it must be 0 or more", which, link.alpha_us));
}

}  // namespace

std::string_view name_of(CollectiveAlgorithm algorithm) {
  for (const AlgorithmRow& row : kAlgorithms)
    if (row.algorithm == algorithm) return row.name;
  return "?";
}

std::vector<std::string_view> collective_algorithm_names() {
  std::vector<std::string_view> names(kAlgorithms.size());
  std::ranges::transform(kAlgorithms, names.begin(), &AlgorithmRow::name);
  return names;
}

std::optional<CollectiveAlgorithm> collective_algorithm_named(std::string_view name) {
  for (const AlgorithmRow& row : kAlgorithms)
    if (row.name == name) return row.algorithm;
  return std::nullopt;
}

void Cluster::check() const {
  if (ranks_per_node < 0)
    throw UsageError(fmt::format(
        "cluster.ranks_per_node is {}; it must be 1 or more, or 0 for all ranks on one", ranks_per_node));
  check_link("inside", inside);
  check_link("between", between);
}

double message_us(const Cluster& cluster, double bytes, int node, int other) {
  return over(cluster.link(node, other), bytes);
}

double collective_us(const Cluster& cluster, CollectiveKind kind, double full_bytes,
                     std::span<const int> nodes) {
  if (nodes.size() < 2) return 0;
  switch (cluster.algorithm) {
    case CollectiveAlgorithm::ring:
      return ring_us(cluster, full_bytes, nodes);
    case CollectiveAlgorithm::tree:
      return tree_us(cluster, full_bytes, nodes);
    case CollectiveAlgorithm::recursive:
      return recursive_us(cluster, kind, full_bytes, nodes);
    case CollectiveAlgorithm::hierarchical:
      return hierarchical_us(cluster, full_bytes, nodes);
  }
  return 0;
}

}  // namespace tessera
