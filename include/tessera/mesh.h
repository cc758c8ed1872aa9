// The ranks arranged along four axes. Pure arithmetic.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/id_vector.h"

namespace tessera {

// The axes of the mesh. `world` stands for all axes together; its group is every rank.
enum class Axis : std::uint8_t { pipeline, replicate, shard, tensor, world };
inline constexpr int kAxes = 4;            // axes of the mesh
inline constexpr int kGroups = kAxes + 1;  // axes with `world`

// A rank's place along each axis, indexed by Axis.
using Coordinates = IdArray<int, kAxes>;

// Ranks are numbered with `tensor` fastest and `pipeline` slowest: rank = ((p·replicate + r)·shard +
// s)·tensor + t. So neighbours along the axes that communicate most are neighbours on a host.
struct Mesh {
  int pipeline = 1;
  int replicate = 1;
  int shard = 1;
  int tensor = 1;

  static constexpr int kMostRanks = 1 << 20;
  // The number of ranks: the product of the axes. UsageError unless every axis is at least 1, and for more
  // than kMostRanks ranks.
  int world() const;
  // The number of ranks in a group along the axis.
  int extent(Axis axis) const;
  Coordinates coordinates(int rank) const;
  // place(): the rank's coordinate along one axis of the mesh. places(): that of every rank, indexed by rank.
  // UsageError for Axis::world, where the coordinate would be the rank itself.
  int place(int rank, Axis axis) const;
  std::vector<int> places(Axis axis) const;
  int rank(const Coordinates& coordinates) const;
  // The ranks that share every coordinate with `rank` but the one along `axis`, ascending; all ranks for
  // `world`.
  std::vector<int> group(Axis axis, int rank) const;
  // data_ranks(): how many groups of ranks see different samples, replicate · shard. data_rank(): the number,
  // from 0, of the rank's group. Ranks that differ only along pipeline and tensor see the same samples.
  int data_ranks() const;
  int data_rank(int rank) const { return place(rank, Axis::replicate) * shard + place(rank, Axis::shard); }
  // Throws UsageError unless world() equals `world`.
  void check(int world) const;
};

// How a step's G microbatches are dealt to its N data ranks: round by round, microbatch g to data rank g mod
// N in round g div N. Where G is no multiple of N, only the first data ranks have one in the last round; the
// others rest there.
//
// With several blocks (Strategy::blocks) each of the R replicas has G / R consecutive microbatches, which are
// dealt in the same way to the ranks along its shard axis, so that all replicas have equal rounds.
struct Rounds {
  int count = 1;       // microbatches of a rank that never rests
  int last_ranks = 0;  // ranks that have one in the last round, of those among which it is dealt; 0: all
  int blocks = 1;

  // UsageError for fewer than 1 microbatch, for a number that is no multiple of several blocks, and for more
  // rounds than an int counts.
  static Rounds of(std::int64_t microbatches, const Mesh& mesh, int blocks = 1);
  // The ranks among which a round is dealt: the data ranks, with several blocks those of one replica.
  int ranks(const Mesh& mesh) const { return blocks > 1 ? mesh.shard : mesh.data_ranks(); }
  // Whether the data rank has no microbatch in the last round.
  bool rests(const Mesh& mesh, int data_rank) const {
    return last_ranks > 0 && data_rank % ranks(mesh) >= last_ranks;
  }
  // How many ranks along the shard axis have a microbatch in the round.
  int shards(const Mesh& mesh, int round) const {
    return last_ranks > 0 && round == count - 1 ? last_ranks : mesh.shard;
  }
  // The microbatches of one data rank.
  int microbatches(const Mesh& mesh, int data_rank) const { return count - (rests(mesh, data_rank) ? 1 : 0); }
  // The microbatches of a step.
  std::int64_t microbatches(const Mesh& mesh) const;
  // The number, of the step's, of the microbatch that the data rank has in a round.
  std::int64_t number(const Mesh& mesh, int data_rank, std::int64_t round) const;
  bool operator==(const Rounds&) const = default;
};

std::string_view name_of(Axis axis);

// "shard 2", "pipeline 2 × shard 4"; "one rank" where every axis is 1.
std::string to_string(const Mesh& mesh);

}  // namespace tessera
