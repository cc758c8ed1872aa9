#include "src/engine/equal_engines.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <optional>
#include <string_view>

#include "src/engine/figures.h"
#include "tessera/numeric_differences.h"
#include "tessera/pipeline.h"

namespace tessera {
namespace {

// Between a figure's name and its value, and behind it: characters that no name or text of a user's keeps.
constexpr char kIs = '\x1f', kEnd = '\x1e';

std::string plain(std::string text) {
  std::ranges::replace_if(
      text, [](char c) { return c == kIs || c == kEnd; }, '?');
  return text;
}

void add_strategy(Figures& figures, const Strategy& s) {
  figures.add("strategy.placements.parameters", name_of(s.placements.parameters));
  figures.add("strategy.placements.gradients", name_of(s.placements.gradients));
  figures.add("strategy.placements.optimizer_state", name_of(s.placements.optimizer_state));
  figures.add("strategy.reduce", name_of(s.reduce));
  figures.add("strategy.reduction", name_of(s.reduction));
  figures.add("strategy.blocks", s.blocks);
  figures.add("strategy.update", name_of(s.update));
  figures.add("strategy.prefetch", s.prefetch);
  figures.add("strategy.recompute", name_of(s.recompute));
  std::string choices;
  for (const ActivationChoice& choice : s.unit_activations)
    choices += fmt::format("{}{}{} on {}", choices.empty() ? "" : ", ", name_of(choice.recompute),
                           choice.again.empty() ? "" : fmt::format(" and {}", fmt::join(choice.again, " ")),
                           name_of(choice.kept));
  figures.add("strategy.unit_activations", choices.empty() ? "empty" : choices);
  figures.add("strategy.resident_units", s.resident_units);
  figures.add("strategy.state_over_replicas", s.state_over_replicas);
  figures.add("strategy.parameters_over_replicas", s.parameters_over_replicas);
  figures.add("strategy.pipeline.schedule", name_of(s.pipeline.schedule));
  figures.add("strategy.pipeline.chunks", s.pipeline.chunks);
  figures.add("strategy.pipeline.cuts", fmt::format("[{}]", fmt::join(s.pipeline.cuts, ", ")));
  figures.add("strategy.pipeline.gather_once", s.pipeline.gather_once);
  figures.add("strategy.offload.states", name_of(s.offload.states));
  figures.add("strategy.offload.states_on_device", s.offload.states_on_device);
  figures.add("strategy.offload.parameters", name_of(s.offload.parameters));
  figures.add("strategy.offload.staged", s.offload.staged);
  figures.add("strategy.offload.activations", name_of(s.offload.activations));
}

// What a trainer with activations gives the engine to place: another batch on one rank ends up here.
void add_activations(Figures& figures, std::string_view of, const ActivationSpec& activations,
                     const Layout& layout) {
  figures.add(fmt::format("{}batch_bytes", of), activations.batch_bytes);
  for (UnitId unit = 0; unit < activations.units.count(); ++unit) {
    const UnitGraph& graph = activations.units[unit];
    const std::string name = fmt::format("{}units[{}] ('{}')", of, unit,
                                         unit < layout.units().count() ? layout.units()[unit].name : "");
    figures.add(name, fmt::format("output_bytes {}{}", graph.output_bytes,
                                  graph.keeps_more ? ", keeps_more true" : ""));
    for (const ValueSpec& value : graph.values)
      figures.add(
          fmt::format("{} value '{}'", name, value.name),
          fmt::format("bytes {}, keep {}, over {}, held {}, exchanged {}, in pieces {}, type {}, piece of "
                      "{} from {}",
                      value.bytes, name_of(value.keep), value.over, name_of(value.held), value.exchanged,
                      value.in_pieces, name_of(value.type), value.piece_of, value.begin));
    for (const PartSpec& part : graph.parts)
      figures.add(fmt::format("{} part '{}'", name, part.name),
                  fmt::format("{}{}, reads {}, writes {}, gradients {}, workspace_bytes {}",
                              name_of(part.pass), part.evaluation_only ? " of evaluations" : "",
                              fmt::join(part.reads, " "), fmt::join(part.writes, " "),
                              part.gradients ? fmt::format("{}", fmt::join(*part.gradients, " ")) : "all",
                              part.workspace_bytes));
  }
}

// Both are empty where the figures have ended.
struct Figure {
  std::string_view name, value;
  bool operator==(const Figure&) const = default;
};
Figure take_figure(std::string_view& figures) {
  if (figures.empty()) return {};
  const std::size_t is = figures.find(kIs), end = figures.find(kEnd);
  const Figure first{figures.substr(0, is), figures.substr(is + 1, end - is - 1)};
  figures.remove_prefix(end + 1);
  return first;
}

std::string to_string(const Figure& figure) {
  return figure.name.empty() ? "nothing more is given" : fmt::format("{} is {}", figure.name, figure.value);
}

// The first that the two do not share.
std::string in_words(std::string_view there, std::string_view here, std::int64_t reference) {
  Figure figure, expected;
  do {
    figure = take_figure(there);
    expected = take_figure(here);
  } while (figure == expected && !figure.name.empty());
  if (figure == expected) return "the programs made of them, by their hashes";
  if (figure.name == expected.name)
    return fmt::format("{}, and {} on rank {}", to_string(figure), expected.value, reference);
  return fmt::format("{}, where rank {} has: {}", to_string(figure), reference, to_string(expected));
}

}  // namespace

std::string figures_of(const Layout& layout, const EngineOptions& options) {
  Figures figures;
  figures.add("mesh", to_string(options.mesh));
  for (std::size_t program = 0; program < options.programs.size(); ++program) {
    const std::string name = fmt::format("programs[{}].", program);
    figures.add(name + "kind", name_of(options.programs[program].kind));
    figures.add(name + "microbatches", options.programs[program].microbatches);
    figures.add(name + "last_round_ranks", options.programs[program].last_round_ranks);
  }
  for (const NumericFact& fact : options.compute) figures.add("compute: " + fact.what, fact.value);
  add_strategy(figures, options.strategy);
  add_optimizer(figures, options.optimizer);
  figures.add("clip.max_norm", options.clip.max_norm);
  figures.add("parameter_norms", options.parameter_norms);
  figures.add("graphs", options.graphs);
  figures.add("overwrites_gradients", options.overwrites_gradients);
  figures.add("splits_layers", options.splits_layers);
  add_scaling(figures, options.loss_scaling);
  add_units(figures, layout);
  add_order(figures, options.order);
  for (std::size_t program = 0; program < options.programs.size(); ++program)
    add_activations(figures, fmt::format("programs[{}].activations.", program),
                    options.programs[program].activations, layout);
  std::string text;
  for (const NumericFact& figure : figures.facts())
    text += plain(figure.what) + kIs + plain(figure.value) + kEnd;
  return text;
}

std::vector<int> compare_engines(Communicator& states, const std::string& figures, std::uint64_t hash) {
  struct Made {
    std::uint64_t hash;
    std::int64_t rank;
  };
  const Made own{hash, states.global_rank()};
  IdVector<Made> all(states.world());
  states.all_gather(&own, all.data(), sizeof own, {"set-up", "comparing programs"});
  const auto other = std::ranges::find_if(all, [&](const Made& made) { return made.hash != all[0].hash; });
  if (other != all.end()) {
    const CallLabel label{"set-up", "comparing units and options"};
    const std::string there = broadcast_text(states, figures, static_cast<int>(other - all.begin()), label);
    const std::string here = broadcast_text(states, figures, 0, label);
    throw UsageError(fmt::format(
        "rank {} was given other units or options than rank {}: {}; all ranks must make equal engines",
        other->rank, all[0].rank, in_words(there, here, all[0].rank)));
  }
  std::vector<int> ranks;
  ranks.reserve(all.size());
  for (const Made& made : all) ranks.push_back(static_cast<int>(made.rank));
  return ranks;
}

}  // namespace tessera
