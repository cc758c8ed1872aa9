// The ranks arranged along four axes. Pure arithmetic.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

namespace tessera {

enum class Axis : std::uint8_t { pipeline, replicate, shard, tensor };
inline constexpr int kAxes = 4;

// A rank's place along each axis, indexed by Axis.
using Coordinates = std::array<int, kAxes>;

// Ranks are numbered with `tensor` fastest and `pipeline` slowest, so that neighbours along the axes that
// talk most are neighbours on a host: rank = ((p·replicate + r)·shard + s)·tensor + t.
struct Mesh {
  int pipeline = 1;
  int replicate = 1;
  int shard = 1;
  int tensor = 1;

  // Count of ranks: the product of the axes.
  int world() const { return pipeline * replicate * shard * tensor; }
  int extent(Axis axis) const;
  Coordinates coordinates(int rank) const;
  int rank(const Coordinates& coordinates) const;
  // The ranks that share every coordinate with `rank` but the one along `axis`, ascending.
  std::vector<int> group(Axis axis, int rank) const;
  // Throws UsageError unless every axis is at least 1 and world() equals `world`.
  void check(int world) const;
};

// "shard 2", "pipeline 2 × shard 4"; "one rank" where every axis is 1.
std::string to_string(const Mesh& mesh);

}  // namespace tessera
