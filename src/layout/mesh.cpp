#include "tessera/mesh.h"

#include <cstddef>
#include <limits>
#include <numeric>
#include <string>

#include "tessera/error.h"

namespace tessera {
namespace {

constexpr IdArray<std::string_view, kGroups> kAxisNames = {"pipeline", "replicate", "shard", "tensor",
                                                           "world"};

IdArray<int, kAxes> extents(const Mesh& mesh) {
  return {mesh.pipeline, mesh.replicate, mesh.shard, mesh.tensor};
}

}  // namespace

std::string_view name_of(Axis axis) { return kAxisNames[axis]; }

int Mesh::world() const {
  const auto extent_of = extents(*this);
  std::int64_t product = 1;
  for (std::size_t axis = 0; axis < kAxes; ++axis) {
    if (extent_of[axis] < 1)
      throw UsageError("mesh." + std::string(kAxisNames[axis]) + " is " + std::to_string(extent_of[axis]) +
                       "; it must be 1 or more");
    product *= extent_of[axis];
    if (product > kMostRanks)
      throw UsageError("mesh " + to_string(*this) + " has too many ranks; the product of its axes must be " +
                       std::to_string(kMostRanks) + " or less");
  }
  return static_cast<int>(product);
}

int Mesh::data_ranks() const {
  world();  // its checks
  return replicate * shard;
}

Rounds Rounds::of(std::int64_t microbatches, const Mesh& mesh, int blocks) {
  const std::int64_t most = std::int64_t{std::numeric_limits<int>::max()} * mesh.data_ranks();
  if (microbatches < 1 || microbatches > most)
    throw UsageError("microbatches of a step is " + std::to_string(microbatches) + "; it must be 1 to " +
                     std::to_string(most));
  if (blocks > 1 && (microbatches % blocks != 0 || blocks % mesh.replicate != 0))
    throw UsageError("microbatches of a step is " + std::to_string(microbatches) + " and strategy.blocks " +
                     std::to_string(blocks) +
                     "; it must be a multiple of the blocks, and these of mesh.replicate, " +
                     std::to_string(mesh.replicate));
  Rounds rounds{.blocks = blocks};
  const int ranks = rounds.ranks(mesh);
  const std::int64_t dealt = microbatches / (mesh.data_ranks() / ranks);
  rounds.count = static_cast<int>((dealt + ranks - 1) / ranks);
  rounds.last_ranks = static_cast<int>(dealt % ranks);
  return rounds;
}

std::int64_t Rounds::microbatches(const Mesh& mesh) const {
  const int dealt_to = ranks(mesh);
  const std::int64_t dealt = std::int64_t{count} * dealt_to - (last_ranks > 0 ? dealt_to - last_ranks : 0);
  return dealt * (mesh.data_ranks() / dealt_to);
}

std::int64_t Rounds::number(const Mesh& mesh, int data_rank, std::int64_t round) const {
  const int dealt_to = ranks(mesh), groups = mesh.data_ranks() / dealt_to;
  return data_rank / dealt_to * (microbatches(mesh) / groups) + round * dealt_to + data_rank % dealt_to;
}

int Mesh::extent(Axis axis) const { return axis == Axis::world ? world() : extents(*this)[axis]; }

Coordinates Mesh::coordinates(int rank) const {
  if (rank < 0 || rank >= world())
    throw UsageError("rank " + std::to_string(rank) + " is not in the mesh " + to_string(*this) +
                     "; ranks are 0 to " + std::to_string(world() - 1));
  const auto extent_of = extents(*this);
  Coordinates result{};
  for (std::size_t axis = kAxes; axis-- > 0;) {
    result[axis] = rank % extent_of[axis];
    rank /= extent_of[axis];
  }
  return result;
}

int Mesh::place(int rank, Axis axis) const {
  if (static_cast<int>(axis) >= kAxes)
    throw UsageError("axis " + std::string(name_of(axis)) +
                     " is none of the mesh's; a rank's place there is its number");
  return coordinates(rank)[axis];
}

std::vector<int> Mesh::places(Axis axis) const {
  std::vector<int> result;
  result.reserve(static_cast<std::size_t>(world()));
  for (int rank = 0; rank < world(); ++rank) result.push_back(place(rank, axis));
  return result;
}

int Mesh::rank(const Coordinates& coordinates) const {
  const auto extent_of = extents(*this);
  int result = 0;
  for (std::size_t axis = 0; axis < kAxes; ++axis) {
    if (coordinates[axis] < 0 || coordinates[axis] >= extent_of[axis])
      throw UsageError("coordinate " + std::to_string(coordinates[axis]) + " along " +
                       std::string(kAxisNames[axis]) + " is not in the mesh " + to_string(*this) +
                       "; it must be 0 to " + std::to_string(extent_of[axis] - 1));
    result = result * extent_of[axis] + coordinates[axis];
  }
  return result;
}

std::vector<int> Mesh::group(Axis axis, int of_rank) const {
  Coordinates place = coordinates(of_rank);
  std::vector<int> members;
  if (axis == Axis::world) {
    members.resize(static_cast<std::size_t>(world()));
    std::iota(members.begin(), members.end(), 0);
    return members;
  }
  for (int along = 0; along < extent(axis); ++along) {
    place[axis] = along;
    members.push_back(rank(place));
  }
  return members;
}

void Mesh::check(int expected_world) const {
  const int product = world();
  if (product != expected_world)
    throw UsageError("mesh " + to_string(*this) + " has " + std::to_string(product) +
                     " ranks, but the world has " + std::to_string(expected_world) +
                     "; the product of its axes must equal the world");
}

std::string to_string(const Mesh& mesh) {
  const auto extent_of = extents(mesh);
  std::string text;
  for (std::size_t axis = 0; axis < kAxes; ++axis) {
    if (extent_of[axis] == 1) continue;
    if (!text.empty()) text += " × ";
    text += std::string(kAxisNames[axis]) + " " + std::to_string(extent_of[axis]);
  }
  return text.empty() ? "one rank" : text;
}

}  // namespace tessera
