// Random parameters and strategies, of all that goes together.
#pragma once

#include <optional>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "src/program/schedules.h"
#include "tessera/layout.h"
#include "tessera/mesh.h"
#include "tessera/pipeline.h"

namespace tessera::testing {

class Draws {
 public:
  explicit Draws(std::uint64_t seed) : generator_(seed) {}
  // In [from, to].
  int pick(int from, int to) {
    return from + static_cast<int>(generator_() % static_cast<std::uint64_t>(to - from + 1));
  }
  bool chance(int percent) { return pick(1, 100) <= percent; }
  template <typename T>
  T among(const std::vector<T>& values) {
    return values[static_cast<std::size_t>(pick(0, static_cast<int>(values.size()) - 1))];
  }

 private:
  std::mt19937_64 generator_;
};

inline std::vector<ParameterSpec> random_parameters(Draws& draws, const std::string& unit, DType type,
                                                    int groups, const std::vector<ParameterSpec>& of_others) {
  static const std::vector<Shape> kShapes = {{}, {1}, {3}, {64}, {65}, {17, 5}, {300}, {31, 33}, {4500}};
  std::vector<ParameterSpec> parameters;
  const int count = draws.chance(15) ? 0 : draws.pick(1, 4);
  for (int k = 0; k < count; ++k) {
    ParameterSpec parameter{.name = unit + "." + std::to_string(k),
                            .shape = draws.among(kShapes),
                            .dtype = draws.chance(70) ? type : DType::fp32,
                            .trainable = draws.chance(85),
                            .group = draws.pick(0, groups - 1)};
    if (!of_others.empty() && draws.chance(15)) {
      const ParameterSpec& home = draws.among(of_others);
      parameter.tied_to = home.tied_to.empty() ? home.name : home.tied_to;
      parameter.shape = home.shape;
      parameter.dtype = home.dtype;
      parameter.trainable = home.trainable;
      parameter.group = home.group;
    }
    parameters.push_back(parameter);
  }
  return parameters;
}

inline Pipeline draw_pipeline(Draws& draws, int ranks, int units) {
  Pipeline pipeline;
  if (ranks == 1) return pipeline;
  const bool several = 2 * ranks <= units && draws.chance(50);
  pipeline.chunks = several ? draws.pick(1, units / ranks) : 1;
  pipeline.schedule =
      pipeline.chunks > 1 || draws.chance(30)
          ? draws.among<PipelineSchedule>({PipelineSchedule::interleaved, PipelineSchedule::looped})
          : draws.among<PipelineSchedule>(
                {PipelineSchedule::one_forward_one_backward, PipelineSchedule::gpipe});
  if (draws.chance(60)) {
    std::vector<int> among;
    for (int unit = 1; unit < units; ++unit) among.push_back(unit);
    while (static_cast<int>(among.size()) > ranks * pipeline.chunks - 1)
      among.erase(among.begin() + draws.pick(0, static_cast<int>(among.size()) - 1));
    pipeline.cuts = among;
  }
  return pipeline;
}

// A schedule of so many chunks a rank that splits backwards, if there is one.
inline std::optional<PipelineSchedule> splitting_schedule(int chunks) {
  for (const ScheduleRow& row : pipeline_schedules())
    if (row.splits_backward && row.chunks_of(chunks) == chunks) return row.schedule;
  return std::nullopt;
}

// Whether the backward of some unit but the last can be split.
inline bool splits_some(const IdVector<UnitGraph>& units) {
  for (UnitId unit = 0; unit + 1 < units.count(); ++unit)
    if (split_backward(units[unit]).is_split) return true;
  return false;
}

// What may change between one run and the one that resumes it; placements, slices and cuts stay.
inline void draw_free_choices(Draws& draws, Strategy& strategy, const Mesh& mesh, int units,
                              bool early_allowed) {
  const bool stage3 = strategy.placements.parameters == Placement::sharded;
  strategy.prefetch = draws.among<int>({0, 1, 1, 2, 3, 7});
  strategy.recompute = draws.among<Recompute>({Recompute::none, Recompute::selective, Recompute::full});
  strategy.unit_activations.clear();
  if (draws.chance(40))
    for (int unit = 0; unit < units; ++unit)
      strategy.unit_activations.push_back(
          {.recompute = draws.among<Recompute>({Recompute::none, Recompute::selective, Recompute::full}),
           .kept = draws.chance(40) ? Space::host : Space::device});
  strategy.resident_units = stage3 && draws.chance(50) ? draws.pick(0, units + 1) : 0;
  if (mesh.pipeline > 1) {
    strategy.pipeline.gather_once = stage3 && draws.chance(50);
    if (strategy.pipeline.chunks > 1)
      strategy.pipeline.schedule =
          draws.among<PipelineSchedule>({PipelineSchedule::interleaved, PipelineSchedule::looped});
  }
  Offload& offload = strategy.offload;
  offload = {};
  offload.staged = draws.pick(1, 4);
  offload.activations = draws.chance(30) ? Space::host : Space::device;
  offload.states = draws.among<Space>({Space::device, Space::device, Space::host, Space::disk});
  if (offload.states != Space::device && draws.chance(50))
    offload.states_on_device = draws.pick(1, 10) / 10.0;
  const bool may_leave =
      stage3 && (!strategy.state_over_replicas || (strategy.parameters_over_replicas && mesh.shard > 1));
  if (may_leave && draws.chance(50)) offload.parameters = draws.among<Space>({Space::host, Space::disk});
  strategy.update = UpdateWhen::decided;
  if (early_allowed && draws.chance(70))
    strategy.update = UpdateWhen::reduced;
  else if (offload.states != Space::device && draws.chance(50))
    strategy.update = UpdateWhen::next;
}

inline void draw_strategy(Draws& draws, Strategy& strategy, const Mesh& mesh, int units, bool early_allowed) {
  const int stage = draws.among<int>({0, 1, 2, 3, 3, 3});
  strategy.placements = Placements::of_stage(stage);
  strategy.state_over_replicas = stage > 0 && mesh.replicate > 1 && draws.chance(60);
  strategy.parameters_over_replicas = stage == 3 && strategy.state_over_replicas && draws.chance(60);
  strategy.pipeline = draw_pipeline(draws, mesh.pipeline, units);
  draw_free_choices(draws, strategy, mesh, units, early_allowed);
}

// Blocks for steps of about so many microbatches of a rank; 1 where the strategy can have none.
inline int draw_blocks(Draws& draws, const Strategy& strategy, const Mesh& mesh) {
  const bool power_of_two = (mesh.replicate & (mesh.replicate - 1)) == 0;
  if (strategy.reduce == ReduceWhen::last || strategy.reduction == Reduction::native || !power_of_two)
    return 1;
  return mesh.replicate * draws.among<int>({1, 1, 2, 4, 8});
}

inline std::string strategy_in_words(const Strategy& s) {
  std::ostringstream text;
  const auto sharded = [](Placement placement) {
    return placement == Placement::sharded ? "sharded " : "whole ";
  };
  text << "parameters " << sharded(s.placements.parameters) << "gradients " << sharded(s.placements.gradients)
       << "states " << sharded(s.placements.optimizer_state) << "reduce " << static_cast<int>(s.reduce)
       << " blocks " << s.blocks << " update " << name_of(s.update) << " prefetch " << s.prefetch
       << " recompute " << name_of(s.recompute) << " units";
  for (const ActivationChoice& choice : s.unit_activations)
    text << " " << name_of(choice.recompute) << (choice.kept == Space::host ? "@host" : "");
  text << " resident " << s.resident_units << " sliced " << s.state_over_replicas
       << s.parameters_over_replicas << " schedule " << name_of(s.pipeline.schedule) << " chunks "
       << s.pipeline.chunks << " cuts";
  for (const int cut : s.pipeline.cuts) text << " " << cut;
  text << " gather_once " << s.pipeline.gather_once << " states " << name_of(s.offload.states) << " but "
       << s.offload.states_on_device << " parameters " << name_of(s.offload.parameters) << " staged "
       << s.offload.staged << " activations " << name_of(s.offload.activations);
  return text.str();
}

}  // namespace tessera::testing
