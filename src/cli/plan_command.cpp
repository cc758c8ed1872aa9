// `tessera plan`: what each rank will hold, without running.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <nlohmann/json.hpp>

#include "src/cli/commands.h"
#include "src/cli/places.h"
#include "src/cli/plan_report.h"
#include "src/cli/rank_place.h"
#include "src/cli/report.h"
#include "src/cli/run_numerics.h"
#include "src/cli/setup_choices.h"
#include "tessera/memory_report.h"
#include "tessera/program_text.h"

namespace tessera::cli {

namespace {

constexpr int kLargest = 10;

std::string page_title(const Setup& setup) {
  const std::string dimensions =
      std::visit([](const auto& of) { return fmt::format("{} layers, {} channels", of.layers, of.channels); },
                 setup.dimensions);
  return fmt::format("{}, {}, stage {}, {}: memory of a rank", setup.config.model.family, dimensions,
                     setup.config.strategy.stage, to_string(setup.options.engine.mesh));
}

// Of every pipeline rank; the fullest of the device is shown first.
std::string page_of(const Setup& setup, const RunPlans& plans) {
  std::vector<PagePlan> ranks;
  for (const TrainerPlan& plan : plans.of_ranks)
    ranks.push_back({.label = plans.of_ranks.size() > 1 ? plans.whose(static_cast<int>(ranks.size()))
                                                        : std::string("pipeline rank 0"),
                     .programs = plan.programs,
                     .memory = &plan.memory,
                     .names = plan.names});
  return memory_page(ranks, page_title(setup), static_cast<std::size_t>(plans.fullest(Space::device)));
}

// Every program of every pipeline rank, as the ranks run it: with the waits that shared addresses need.
std::string text_of(const RunPlans& plans) {
  std::vector<Program> all;
  for (const TrainerPlan& plan : plans.of_ranks)
    all.insert(all.end(), plan.programs.begin(), plan.programs.end());
  return to_text(all);
}

// The names of the values that the unit's choice makes again besides what `recompute` names.
std::vector<std::string> made_again(const Setup& setup, UnitId unit) {
  const std::vector<ValueId> again = setup.options.engine.strategy.activations_of(unit).again;
  if (again.empty()) return {};
  const BatchShape& batch = setup.options.batch;
  const ModuleNeeds needs = setup.model->modules[unit]->needs(batch, target_of(setup.options));
  std::vector<std::string> names;
  names.reserve(again.size());
  for (const ValueId value : again) names.push_back(needs.activations.values[value].name);
  return names;
}

// "none", "selective", "full", or the values.
std::string words_of_choice(const Setup& setup, UnitId unit) {
  const ActivationChoice choice = setup.options.engine.strategy.activations_of(unit);
  std::string words = fmt::format("{}", fmt::join(made_again(setup, unit), " "));
  if (choice.recompute != Recompute::none || words.empty())
    words = std::string(name_of(choice.recompute)) + (words.empty() ? "" : " ") + words;
  if (choice.kept == Space::host) words += " on the host";
  return words;
}

// "embed none, block.0 to block.3 full, …": runs of units with the same choice.
std::string chosen_words(const Setup& setup) {
  const IdVector<std::string>& names = setup.model->names;
  IdVector<std::string> words;
  for (UnitId unit = 0; unit < names.count(); ++unit) words.push_back(words_of_choice(setup, unit));
  std::string text;
  for (UnitId first = 0, end = 0; first < names.count(); first = end) {
    while (end < names.count() && words[end] == words[first]) ++end;
    text += fmt::format("{}{}{} {}", first == 0 ? "" : ", ", names[first],
                        end - first > 1 ? " to " + names[end - 1] : "", words[first]);
  }
  return text;
}

nlohmann::json activations_json(const Setup& setup) {
  nlohmann::json units = nlohmann::json::array();
  const Strategy& strategy = setup.options.engine.strategy;
  for (UnitId unit = 0; unit < setup.model->names.count(); ++unit)
    units.push_back({{"unit", setup.model->names[unit]},
                     {"recompute", name_of(strategy.activations_of(unit).recompute)},
                     {"again", made_again(setup, unit)},
                     {"kept", name_of(strategy.activations_of(unit).kept)}});
  return units;
}

void print_space(const RunPlans& plans, Space which) {
  const SpacePlan& space = plans.most(which);
  fmt::print("arena     of {}: {} bytes{}, of which {} persist; no plan can take less than {}\n",
             name_of(which), count(space.arena_bytes), plans.where_most(which), count(space.persistent_bytes),
             count(space.live_peak_bytes));
  fmt::print("{}", plans.other_ranks(which));
  fmt::print("peak      of {} at {}\n", name_of(which),
             describe_peak(plans.of_fullest(which).programs, space));
}

void print_largest(const TrainerPlan& plan, Space which) {
  fmt::print("\nlargest at the peak of {}\n{}", name_of(which),
             describe_largest(plan.programs, plan.memory, which, kLargest));
}

nlohmann::json largest_json(const TrainerPlan& plan, Space space) {
  nlohmann::json rows = nlohmann::json::array();
  for (const LiveBuffer& live : largest_at_peak(plan.programs, plan.memory, space, kLargest)) {
    const Buffer& buffer = plan.programs[live.program].buffers[live.buffer];
    rows.push_back({{"name", buffer.name}, {"category", name_of(buffer.category)}, {"bytes", buffer.bytes}});
  }
  return rows;
}

nlohmann::json peak_json(const TrainerPlan& plan, Space which) {
  const SpacePlan& space = plan.memory.space(which);
  const Program& program = plan.programs.at(space.peak_program);
  return {{"instruction", describe(program, space.peak_instruction)},
          {"program", name_of(program.kind)},
          {"largest", largest_json(plan, which)}};
}

}  // namespace

int plan_command(const RunArguments& arguments, const PlanArguments& show, ResultFile& file) {
  const Config config = load_config(arguments.config, arguments.settings, arguments.ranks);
  check_apart(config, arguments.config, {file.named(), {"--html", show.html}, {"--program", show.program}});
  file.open();
  OutputFile page("--html", show.html), text("--program", show.program);
  Setup setup = make_setup(config);
  const std::string no_gpu = ask_gpu(setup.options);
  const RunPlans plans(setup);
  const PlannedNumerics numerics = planned_numerics(setup, plans.of_ranks);
  const std::vector<Space> spaces = plans.spaces();
  print_notes(setup.config);
  print_model(setup);
  print_products(setup);
  if (!no_gpu.empty())
    fmt::print(
        "workspace of attention by cuDNN: the most that it takes on any GPU, as there is none to ask: {}\n",
        no_gpu);
  if (setup.config.strategy.resident_units == kAuto)
    fmt::print("resident  {} units keep their parameters (auto)\n",
               setup.options.engine.strategy.resident_units);
  if (setup.config.pipeline.gather_once == "auto" && setup.options.engine.mesh.pipeline > 1)
    fmt::print("gather    once for a chunk's microbatches in a row: {} (auto)\n",
               setup.options.engine.strategy.pipeline.gather_once);
  if (chooses_states(setup.config))
    fmt::print("states    {:.0f} % of the units keep theirs on the device (auto)\n",
               100 * setup.options.engine.strategy.offload.states_on_device);
  if (setup.config.strategy.recompute == "auto") fmt::print("recompute {} (auto)\n", chosen_words(setup));
  if (has_grid(setup.options.engine.mesh)) fmt::print("\n{}", mesh_grid(setup, plans.of_ranks));
  fmt::print("\n{}\n", plans.table());
  for (const Space space : spaces) print_space(plans, space);
  const EngineOptions& engine = setup.options.engine;
  print_budget("run.device_memory", engine.budget.device_bytes, plans.most_bytes(Space::device));
  print_budget("run.host_memory", engine.budget.host_bytes, plans.most_bytes(Space::host));
  const std::string why_not = explain_misfit(*setup.model, setup.options, plans.of_ranks);
  if (!why_not.empty()) fmt::print("\n{}\n", why_not);

  fmt::print("numerics  {}{}\n", fingerprint_of(numerics.numerics),
             numerics.why_not_opened.empty()
                 ? ""
                 : ", with the names of data that cannot be opened: " + numerics.why_not_opened);

  if (show.why)
    for (const Space space : spaces) print_largest(plans.of_fullest(space), space);
  if (page) {
    page.stream() << page_of(setup, plans);
    page.commit();
  }
  if (text) {
    text.stream() << text_of(plans);
    text.commit();
  }

  nlohmann::json result = memory_json(plans);
  result["parameter_numel"] = setup.model->parameter_numel();
  result["trained_numel"] = setup.model->trained_numel();
  result["ranks"] = setup.world();
  result["mesh"] = mesh_json(setup, plans.of_ranks);
  result["stage"] = setup.config.strategy.stage;
  result["resident_units"] = engine.strategy.resident_units;
  result["activations"] = activations_json(setup);
  result["tokens_per_step"] = setup.tokens_per_step();
  result["numerics"] = numerics_json(numerics.numerics);
  for (const Space space : spaces)
    result["peaks"][std::string(name_of(space))] = peak_json(plans.of_fullest(space), space);
  const nlohmann::json device = result["peaks"]["device"];
  result["peak_instruction"] = device.at("instruction");
  result["peak_program"] = device.at("program");
  result["largest_at_peak"] = device.at("largest");
  result["budget_bytes"] = engine.budget.device_bytes;
  result["host_budget_bytes"] = engine.budget.host_bytes;
  result["fits"] = why_not.empty();
  if (!why_not.empty()) result["misfit"] = why_not;
  file.write(result);
  return 0;
}

}  // namespace tessera::cli
