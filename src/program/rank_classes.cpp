#include "src/program/rank_classes.h"

#include <algorithm>
#include <map>

namespace tessera {
namespace {

constexpr std::array<Axis, kGroups> kAllAxes = {Axis::pipeline, Axis::replicate, Axis::shard, Axis::tensor,
                                                Axis::world};

using Colours = IdVector<int>;  // by rank

void sort_unique(std::vector<int>& list) {
  std::ranges::sort(list);
  list.erase(std::unique(list.begin(), list.end()), list.end());
}

// For each rank, the first rank of its group along the axis.
IdVector<int> group_heads(const Mesh& mesh, Axis axis) {
  IdVector<int> heads;
  if (axis == Axis::world) return IdVector<int>(mesh.world(), 0);
  for (int rank = 0; rank < mesh.world(); ++rank) {
    Coordinates place = mesh.coordinates(rank);
    place[axis] = 0;
    heads.push_back(mesh.rank(place));
  }
  return heads;
}

// By rank: a number for the set of colours in its group, whose first ranks are given.
Colours sets_met(const IdVector<int>& heads, const Colours& colours) {
  IdVector<std::vector<int>> met(heads.size());
  for (std::size_t rank = 0; rank < heads.size(); ++rank) met[heads[rank]].push_back(colours[rank]);
  std::map<std::vector<int>, int> known;
  Colours sets(heads.size());
  for (int rank = 0; rank < heads.count(); ++rank) {
    const int head = heads[rank];
    if (head == rank) {  // the first of its group
      sort_unique(met[rank]);
      sets[rank] = known.try_emplace(std::move(met[rank]), static_cast<int>(known.size())).first->second;
    } else {
      sets[rank] = sets[head];
    }
  }
  return sets;
}

}  // namespace

IdVector<RankClass> rank_classes(const WorldPrograms& world) {
  const int ranks = world.mesh.world();
  const Colours programs = world.program_of_rank.empty() ? Colours(ranks, 0) : world.program_of_rank;
  std::array<IdVector<int>, kGroups> heads;
  for (std::size_t axis = 0; axis < kGroups; ++axis) heads[axis] = group_heads(world.mesh, kAllAxes[axis]);

  // Colour refinement: ranks of one colour that meet different colours get different ones, until none do.
  Colours colours = programs;
  std::size_t count = 0;
  IdVector<RankClass> classes;
  do {
    count = classes.size();
    std::array<Colours, kGroups> met;
    for (std::size_t axis = 0; axis < kGroups; ++axis) met[axis] = sets_met(heads[axis], colours);
    std::map<std::array<int, kGroups + 1>, int> known;
    classes.clear();
    Colours refined(ranks);
    for (int rank = 0; rank < ranks; ++rank) {
      std::array<int, kGroups + 1> signature = {};
      signature.back() = colours[rank];
      for (std::size_t axis = 0; axis < kGroups; ++axis) signature[axis] = met[axis][rank];
      const auto [entry, is_new] = known.try_emplace(signature, static_cast<int>(classes.size()));
      if (is_new)
        classes.push_back({.program = programs[rank], .rank = rank, .meets = {}, .along_pipeline = {}});
      refined[rank] = entry->second;
    }
    colours = std::move(refined);
  } while (classes.size() != count);

  for (const int colour : colours) ++classes[colour].ranks;
  for (RankClass& one : classes) {
    for (int peer : world.mesh.group(Axis::pipeline, one.rank)) one.along_pipeline.push_back(colours[peer]);
    for (std::size_t axis = 0; axis < kGroups; ++axis) {
      for (int peer : world.mesh.group(kAllAxes[axis], one.rank)) one.meets[axis].push_back(colours[peer]);
      sort_unique(one.meets[axis]);
    }
  }
  return classes;
}

IdVector<int> programs_of_ranks(const Mesh& mesh, std::span<const int> first_data_ranks) {
  IdVector<int> programs = mesh.places(Axis::pipeline);
  for (int rank = 0; rank < mesh.world(); ++rank) {
    const auto above = std::ranges::upper_bound(first_data_ranks, mesh.place(rank, Axis::shard));
    const auto set = static_cast<int>(above - first_data_ranks.begin()) - 1;
    programs[rank] += set * mesh.pipeline;
  }
  return programs;
}

}  // namespace tessera
