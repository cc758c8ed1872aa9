#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <numeric>
#include <utility>

#include "src/program/meetings.h"
#include "src/program/opcodes.h"
#include "src/program/rank_classes.h"
#include "src/simulate/folding.h"
#include "src/simulate/simulate.h"
#include "tessera/error.h"

namespace tessera {
namespace {

// Where the members of a group lie, without saying on which nodes: the first one's node is 0, the next new
// one 1, and so on. Equal ones cost the same.
std::vector<int> pattern(const Cluster& cluster, std::span<const int> group) {
  std::map<int, int> known;
  std::vector<int> nodes;
  for (const int member : group)
    nodes.push_back(known.try_emplace(cluster.node_of(member), static_cast<int>(known.size())).first->second);
  return nodes;
}

// By rank: which pattern its group along the axis has, counted in order of first appearance.
IdVector<int> patterns_along(const Mesh& mesh, const Cluster& cluster, Axis axis) {
  std::map<std::vector<int>, int> known;
  IdVector<int> patterns(mesh.world(), -1);
  for (int rank = 0; rank < mesh.world(); ++rank) {
    if (patterns[rank] >= 0) continue;
    const std::vector<int> group = mesh.group(axis, rank);
    const int number =
        known.try_emplace(pattern(cluster, group), static_cast<int>(known.size())).first->second;
    for (const int member : group) patterns[member] = number;
  }
  return patterns;
}

// Ranks of one number run the same program, and all that they do costs the same.
IdVector<int> kinds_of_ranks(const WorldPrograms& world, const Cluster& cluster) {
  IdArray<IdVector<int>, kAxes> patterns;
  for (int axis = 0; axis < kAxes; ++axis)
    patterns[axis] = patterns_along(world.mesh, cluster, static_cast<Axis>(axis));
  std::map<std::pair<int, std::array<int, kAxes>>, int> known;
  IdVector<int> kinds;
  for (std::size_t rank = 0; rank < world.program_of_rank.size(); ++rank) {
    std::array<int, kAxes> along;
    for (std::size_t axis = 0; axis < kAxes; ++axis) along[axis] = patterns[axis][rank];
    const std::pair kind(world.program_of_rank[rank], along);
    kinds.push_back(known.try_emplace(kind, static_cast<int>(known.size())).first->second);
  }
  return kinds;
}

IdVector<RankClass> folded_classes(const WorldPrograms& world, const Cluster& cluster) {
  IdVector<RankClass> classes =
      rank_classes({.mesh = world.mesh, .programs = {}, .program_of_rank = kinds_of_ranks(world, cluster)});
  for (RankClass& one : classes) one.program = world.program_of_rank[one.rank];
  return classes;
}

IdVector<RankClass> single_ranks(const WorldPrograms& world) {
  IdVector<RankClass> classes;
  for (int rank = 0; rank < world.mesh.world(); ++rank) {
    RankClass one{.program = world.program_of_rank[rank],
                  .rank = rank,
                  .ranks = 1,
                  .meets = {},
                  .along_pipeline = world.mesh.group(Axis::pipeline, rank)};
    for (std::size_t axis = 0; axis < kGroups; ++axis)
      one.meets[axis] = world.mesh.group(static_cast<Axis>(axis), rank);
    classes.push_back(std::move(one));
  }
  return classes;
}

class World {
 public:
  World(const WorldPrograms& world, const Layout& layout, const CostModel& cost, Folding folding)
      : world_(world),
        classes_(folding == Folding::folded ? folded_classes(world, cost.cluster) : single_ranks(world)),
        issuer_(issuer_of(cost, world.mesh)),
        flow_(programs_of_classes(), issuer_, cost.wake_us) {
    for (const Program& program : world.programs) meetings_.emplace_back(program);
    for (const RankClass& one : classes_)
      costs_.emplace_back(program_of(one), layout, world.mesh, cost, one.rank);
  }

  WorldTimeline run() {
    for (int c = 0; c < classes_.count(); ++c) {
      join_collectives(c);
      join_messages(c);
    }
    IdVector<IdVector<double>> durations;
    for (std::size_t c = 0; c < classes_.size(); ++c)
      durations.push_back(durations_of(program_of(classes_[c]), costs_[c]));
    const auto times = flow_.run(durations);
    if (times.empty())
      throw UsageError("simulate: the programs' instructions wait for each other; verify() names them");
    WorldTimeline result;
    for (std::size_t c = 0; c < classes_.size(); ++c) {
      const RankClass& one = classes_[c];
      result.ranks.push_back({.program = one.program,
                              .rank = one.rank,
                              .ranks = one.ranks,
                              .timeline = timeline_of(program_of(one), costs_[c], times[c], issuer_)});
    }
    sum_up(result);
    return result;
  }

 private:
  const Program& program_of(const RankClass& of) const { return world_.programs[of.program]; }
  const RankClass& one(int c) const { return classes_[c]; }
  const Meetings& meetings_of(int c) const { return meetings_[one(c).program]; }

  IdVector<const Program*> programs_of_classes() const {
    IdVector<const Program*> programs;
    for (const RankClass& of : classes_) programs.push_back(&program_of(of));
    return programs;
  }

  // The n-th of a channel meets the n-th of the others; all of a group are joined through its first class.
  void join_collectives(int c) {
    for (std::size_t axis = 0; axis < kGroups; ++axis) {
      const int d = one(c).meets[axis].front();
      if (c == d) continue;
      for (int lane = 0; lane < kLanes; ++lane) {
        const auto on = [&](int of) {
          return meetings_of(of).collectives(static_cast<Axis>(axis), static_cast<Lane>(lane));
        };
        join(d, on(d), c, on(c));
      }
    }
  }

  void join_messages(int c) {
    const int place = program_of(one(c)).pipeline_rank;
    for (int peer = 0; peer < world_.mesh.pipeline; ++peer) {
      const int d = one(c).along_pipeline[peer];
      if (c == d) continue;
      for (const Lane lane : {Lane::send_output, Lane::send_gradient})
        join(c, meetings_of(c).messages(lane, peer), d, meetings_of(d).messages(other_end(lane), place));
    }
  }

  void join(int c, std::span<const InstructionId> mine, int d, std::span<const InstructionId> theirs) {
    if (mine.size() != theirs.size()) {
      const bool more = mine.size() > theirs.size();
      const InstructionId alone = more ? mine[theirs.size()] : theirs[mine.size()];
      throw UsageError(fmt::format("simulate: {} on rank {} meets nothing on rank {}",
                                   describe(program_of(one(more ? c : d)), alone), one(more ? c : d).rank,
                                   one(more ? d : c).rank));
    }
    for (std::size_t k = 0; k < mine.size(); ++k) flow_.merge(c, mine[k], d, theirs[k]);
  }

  void sum_up(WorldTimeline& result) const {
    double first = -1, last = 0, passes = 0, exposed = 0;
    for (RankTimeline& of : result.ranks) {
      const Program& program = world_.programs[of.program];
      for (const TraceSpan& span : of.timeline.spans) {
        if (program.instructions[span.instruction].op != Opcode::use) continue;
        of.passes_us += span.end_us - span.start_us;
        first = first < 0 ? span.start_us : std::min(first, span.start_us);
        last = std::max(last, span.end_us);
      }
      result.total_us = std::max(result.total_us, of.timeline.total_us);
      passes += of.ranks * of.passes_us;
      exposed += of.ranks * of.timeline.exposed_us;
    }
    const double ranks = world_.mesh.world();
    result.passes_span_us = std::max(0.0, last - first);
    if (passes > 0) result.bubble = 1 - passes / (ranks * result.passes_span_us);
    if (result.total_us > 0) result.utilisation = passes / (ranks * result.total_us);
    result.exposed_us = exposed / ranks;
  }

  const WorldPrograms& world_;
  IdVector<RankClass> classes_;
  IdVector<Meetings> meetings_;          // by program
  std::vector<InstructionCosts> costs_;  // by class
  Dataflow::Issuer issuer_;
  Dataflow flow_;
};

void check(const WorldPrograms& world) {
  const int ranks = world.mesh.world();
  if (world.program_of_rank.count() != ranks)
    throw UsageError(fmt::format("simulate: program_of_rank names {} ranks; the mesh ({}) has {}",
                                 world.program_of_rank.size(), to_string(world.mesh), ranks));
  for (int rank = 0; rank < ranks; ++rank) {
    const int index = world.program_of_rank[rank];
    if (index < 0 || index >= world.programs.count())
      throw UsageError(fmt::format("simulate: program_of_rank[{}] is {}; there are {} programs", rank, index,
                                   world.programs.size()));
    const int place = world.mesh.place(rank, Axis::pipeline);
    const int made_for = world.programs[index].pipeline_rank;
    if (made_for != place)
      throw UsageError(fmt::format("simulate: rank {} is pipeline rank {}, but its program is for {}", rank,
                                   place, made_for));
  }
}

}  // namespace

WorldTimeline simulate(const WorldPrograms& world, const Layout& layout, const CostModel& cost,
                       Folding folding) {
  cost.check();
  WorldPrograms named = world;
  if (named.program_of_rank.empty()) named.program_of_rank = IdVector<int>(named.mesh.world(), 0);
  check(named);
  return World(named, layout, cost, folding).run();
}

WorldTimeline simulate(const WorldPrograms& world, const Layout& layout, const CostModel& cost) {
  return simulate(world, layout, cost, Folding::folded);
}

}  // namespace tessera
