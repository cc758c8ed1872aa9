// Random models, meshes and strategies, and the programs of all their ranks, planned and linked as they run.
#pragma once

#include <algorithm>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "src/simulate/folding.h"
#include "tessera/budget.h"
#include "tessera/numeric_differences.h"
#include "tessera/prove.h"
#include "tessera/verify.h"
#include "tests/program/random_strategy.h"
#include "tests/program/small_graph.h"

namespace tessera::testing {

struct Case {
  std::vector<UnitSpec> units;
  Mesh mesh;
  std::vector<StepSpec> specs;
  CostModel cost;
};

inline std::vector<UnitSpec> draw_units(Draws& draws, DType type) {
  std::vector<UnitSpec> units;
  std::vector<ParameterSpec> before;
  for (int unit = draws.pick(1, 14); unit > 0; --unit) {
    UnitSpec made{.name = "unit" + std::to_string(unit), .parameters = {}};
    made.parameters = random_parameters(draws, made.name, type, 1, before);
    made.read_in_forward_only = draws.chance(15);
    before.insert(before.end(), made.parameters.begin(), made.parameters.end());
    units.push_back(made);
  }
  return units;
}

// A unit of several parts, between which its parameters are dealt.
inline UnitGraph random_graph(Draws& draws, const UnitSpec& unit) {
  UnitGraph graph = small_graph();
  graph.output_bytes = draws.pick(1, 50000);
  for (ValueSpec& value : graph.values) value.bytes = draws.chance(85) ? draws.pick(0, 60000) : 0;
  for (ValueSpec& value : graph.values)
    if (value.over != kNoValue) value.bytes = graph.values[value.over].bytes;
  for (PartSpec& part : graph.parts) {
    part.workspace_bytes = draws.chance(50) ? draws.pick(0, 9000) : 0;
    if (draws.chance(10)) part.reads.push_back(SharedValue::batch);
    if (!part.gradients || part.gradients->empty()) continue;
    const int turn = part.gradients->front();
    part.gradients->clear();
    for (int place = turn; place < static_cast<int>(unit.parameters.size()); place += 2)
      part.gradients->push_back(place);
  }
  return graph;
}

// Whether some ranks may have fewer microbatches than others.
inline bool can_rest(const Mesh& mesh, const Strategy& strategy) {
  return mesh.shard > 1 && mesh.replicate == 1 && strategy.reduce != ReduceWhen::last &&
         strategy.reduction == Reduction::exact;
}

// How tensor ranks share the parameters; tied ones as their homes do.
inline void draw_cuts(Draws& draws, std::vector<UnitSpec>& units, int ranks) {
  std::map<std::string, const ParameterSpec*> known;
  for (UnitSpec& unit : units)
    for (ParameterSpec& parameter : unit.parameters) {
      if (!parameter.tied_to.empty()) {
        parameter.cut = known.at(parameter.tied_to)->cut;
        parameter.gradient = known.at(parameter.tied_to)->gradient;
        continue;
      }
      known[parameter.name] = &parameter;
      if (draws.chance(40)) parameter.gradient = GradientOver::partial;
      if (parameter.shape.empty() || draws.chance(40)) continue;
      const int dim = draws.pick(0, static_cast<int>(parameter.shape.size()) - 1);
      parameter.cut = {.dim = dim, .padded = true};
      if (parameter.shape[static_cast<std::size_t>(dim)] % ranks == 0) parameter.cut.padded = false;
    }
}

// On so many tensor ranks, of values of random bytes.
inline UnitGraph random_split_graph(Draws& draws, const UnitSpec& unit, int ranks) {
  const int pieces = draws.chance(40) ? draws.pick(2, 4) : 1;
  UnitGraph graph = small_split_graph(ranks, 4 * pieces * draws.pick(1, 5000 / pieces));
  for (const ValueId value : {kSplitUp, kSplitUpGradient})
    graph.values[value].bytes = pieces * draws.pick(0, 60000 / pieces);
  if (pieces > 1) graph = InPieces(graph, pieces).graph;
  for (PartSpec& part : graph.parts) {
    if (!part.gradients || part.gradients->empty()) continue;
    const int turn = part.gradients->front();
    part.gradients->clear();
    for (int place = turn; place < static_cast<int>(unit.parameters.size()); place += 3)
      part.gradients->push_back(place);
  }
  return graph;
}

inline Case draw_case(std::uint64_t seed) {
  Draws draws(seed), rounds(~seed), blocks(seed * 7 + 3), tensors(seed * 13 + 5);
  Case of;
  of.units = draw_units(draws, draws.among<DType>({DType::fp32, DType::bf16}));
  const int units = static_cast<int>(of.units.size());
  of.mesh = {.pipeline = std::min(units, draws.among<int>({1, 1, 2, 3, 4, 8})),
             .replicate = draws.among<int>({1, 1, 2, 3, 16}),
             .shard = draws.among<int>({1, 2, 3, 8, 64, 257}),
             .tensor = tensors.among<int>({1, 1, 2, 4})};
  draw_cuts(tensors, of.units, of.mesh.tensor);
  StepSpec spec;
  spec.moments = draws.pick(0, 2);
  spec.zero_gradients = seed % 5 == 0;
  spec.parameter_norms = seed % 7 == 0;
  if (draws.chance(30)) spec.moment_type = DType::bf16;
  draw_strategy(draws, spec.strategy, of.mesh, units, draws.chance(30));
  spec.strategy.reduce = draws.among<ReduceWhen>({ReduceWhen::automatic, ReduceWhen::each, ReduceWhen::last});
  if (blocks.chance(40)) spec.strategy.blocks = draw_blocks(blocks, spec.strategy, of.mesh);
  for (int program = draws.pick(1, 3); program > 0; --program) {
    spec.kind = program == 3 ? StepKind::evaluate : StepKind::train;
    spec.microbatches = draws.pick(1, 9);
    const bool some_rest = can_rest(of.mesh, spec.strategy) && rounds.chance(60);
    spec.last_round_ranks = some_rest ? rounds.pick(1, of.mesh.shard - 1) : 0;
    if (spec.kind == StepKind::train && spec.strategy.blocks > 1) {
      const std::int64_t all = spec.strategy.blocks * std::int64_t{blocks.pick(1, 2)} *
                               (blocks.chance(30) ? std::min(of.mesh.shard, 3) : 1);
      const Rounds of_blocks = Rounds::of(all, of.mesh, spec.strategy.blocks);
      spec.microbatches = of_blocks.count;
      spec.last_round_ranks = of_blocks.last_ranks;
    }
    spec.activations = {.units = {}, .batch_bytes = draws.pick(0, 5000)};
    for (int unit = 0; unit < units; ++unit)
      spec.activations.units.push_back(
          of.mesh.tensor > 1 && tensors.chance(70)
              ? random_split_graph(tensors, of.units[static_cast<std::size_t>(unit)], of.mesh.tensor)
          : draws.chance(40)
              ? random_graph(draws, of.units[static_cast<std::size_t>(unit)])
              : UnitActivations{.output_bytes = draws.pick(1, 50000),
                                .saved_bytes = draws.chance(70) ? draws.pick(0, 200000) : 0,
                                .recomputable_bytes = draws.chance(70) ? draws.pick(0, 200000) : 0,
                                .workspace_bytes = draws.pick(0, 60000),
                                .reads_batch = draws.chance(40)});
    of.specs.push_back(spec);
  }
  const auto splits = [](const StepSpec& step) { return splits_some(step.activations.units); };
  const std::optional<PipelineSchedule> splitting = splitting_schedule(spec.strategy.pipeline.chunks);
  if (of.mesh.pipeline > 1 && splitting && std::ranges::all_of(of.specs, splits) && tensors.chance(60))
    for (StepSpec& step : of.specs) step.strategy.pipeline.schedule = *splitting;
  of.cost.cluster.ranks_per_node = draws.among<int>({0, 1, 8});
  of.cost.compute_issues = draws.chance(50);
  for (int unit = 0; unit < units; ++unit) of.cost.forward_flops.push_back(draws.pick(0, 1000) * 1e6);
  return of;
}

inline std::string in_words(const Case& of, std::uint64_t seed) {
  std::ostringstream text;
  text << "seed " << seed << ": " << tessera::to_string(of.mesh) << " moments " << of.specs[0].moments
       << " | " << strategy_in_words(of.specs[0].strategy) << "\n  programs";
  for (const StepSpec& spec : of.specs) {
    text << " " << name_of(spec.kind) << " " << spec.microbatches;
    if (spec.last_round_ranks > 0) text << " the last of " << spec.last_round_ranks;
  }
  text << "\n  units";
  for (const UnitSpec& unit : of.units) {
    text << " [" << (unit.read_in_forward_only ? "forward only:" : "");
    for (const ParameterSpec& parameter : unit.parameters)
      text << " " << tessera::to_string(parameter.shape) << name_of(parameter.dtype)
           << (parameter.trainable ? "" : "!")
           << (parameter.cut.dim >= 0                        ? "/" + std::to_string(parameter.cut.dim)
               : parameter.gradient == GradientOver::partial ? "+"
                                                             : "")
           << (parameter.tied_to.empty() ? "" : "=" + parameter.tied_to);
    text << "]";
  }
  return text.str();
}

struct World {
  Layout layout;
  Mesh mesh;
  std::vector<PlannedPrograms> planned;
  std::vector<int> of_rank;

  explicit World(const Case& of)
      : layout(of.units, of.mesh.shard, of.mesh.replicate, of.mesh.tensor),
        mesh(of.mesh),
        planned(plan_pipeline(layout, mesh, of.specs)),
        of_rank(programs_of_ranks(mesh, first_data_ranks(of.specs))) {}

  std::vector<Program> programs(std::size_t index) const {
    std::vector<Program> all;
    for (const PlannedPrograms& rank : planned) all.push_back(rank.programs[index]);
    return all;
  }
  // On GPUs what communicates starts in order.
  VerifyReport verified(std::size_t index, bool on_gpus) const {
    std::vector<PlannedProgram> plans;
    for (const PlannedPrograms& rank : planned) plans.push_back({&rank.plan, static_cast<int>(index)});
    const std::vector<Program> all = programs(index);
    return verify({.mesh = mesh, .programs = all, .program_of_rank = of_rank, .starts_in_order = on_gpus},
                  plans);
  }
  // The number of programs of every rank: those of the specs first, then those that finish what these leave.
  std::size_t count() const { return planned[0].programs.size(); }
  VerifyReport proved(std::size_t index) const {
    const std::vector<Program> all = programs(index);
    return prove({.mesh = mesh, .programs = all, .program_of_rank = of_rank}, layout);
  }
  double time(const CostModel& cost, Folding folding = Folding::folded) const {
    const std::vector<Program> all = programs(0);
    return simulate({.mesh = mesh, .programs = all, .program_of_rank = of_rank}, layout, cost, folding)
        .total_us;
  }
};

}  // namespace tessera::testing
