// `tessera plan`: what each rank will hold, without running.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "src/cli/commands.h"
#include "src/cli/memory_report.h"
#include "src/cli/mesh_report.h"
#include "src/cli/report.h"
#include "tessera/memory_report.h"

namespace tessera::cli {

namespace {

constexpr int kLargest = 10;

std::string page_title(const Setup& setup, int pipeline_rank) {
  const Mesh& mesh = setup.options.engine.mesh;
  return fmt::format("{}, stage {}, {}: memory of a rank{}", setup.config.model.preset,
                     setup.config.strategy.stage, to_string(mesh),
                     mesh.pipeline > 1 ? fmt::format(" at place {} of the pipeline", pipeline_rank) : "");
}

// "embed none, block.0 to block.3 full, …": runs of units with the same choice.
std::string chosen_words(const Setup& setup) {
  const std::vector<std::string>& names = setup.model->names;
  const std::vector<ActivationChoice>& chosen = setup.options.engine.strategy.unit_activations;
  std::string text;
  for (std::size_t first = 0, end = 0; first < chosen.size(); first = end) {
    while (end < chosen.size() && chosen[end] == chosen[first]) ++end;
    text += fmt::format("{}{}{} {}", first == 0 ? "" : ", ", names[first],
                        end - first > 1 ? " to " + names[end - 1] : "", name_of(chosen[first].recompute));
    if (chosen[first].kept == Space::host) text += " on the host";
  }
  return text;
}

nlohmann::json activations_json(const Setup& setup) {
  nlohmann::json units = nlohmann::json::array();
  const Strategy& strategy = setup.options.engine.strategy;
  for (std::size_t unit = 0; unit < setup.model->names.size(); ++unit)
    units.push_back({{"unit", setup.model->names[unit]},
                     {"recompute", name_of(strategy.activations_of(static_cast<int>(unit)).recompute)},
                     {"kept", name_of(strategy.activations_of(static_cast<int>(unit)).kept)}});
  return units;
}

}  // namespace

int plan_command(const RunArguments& arguments, const PlanArguments& show) {
  OutputFile file = arguments.json.empty() ? OutputFile() : OutputFile(arguments.json);
  OutputFile page = show.html.empty() ? OutputFile() : OutputFile(show.html);
  const Setup setup = make_setup(load_config(arguments.config, arguments.settings));
  const RunPlans plans(setup);
  const TrainerPlan& plan = plans.of_fullest();
  const SpacePlan& device = plan.memory.space(Space::device);
  const Program& at_peak = plan.programs.at(static_cast<std::size_t>(device.peak_program));
  const std::string instruction = describe(at_peak, device.peak_instruction);
  print_model(setup);
  if (setup.config.strategy.resident_units == kAuto)
    fmt::print("resident  {} units keep their parameters (auto)\n",
               setup.options.engine.strategy.resident_units);
  if (setup.config.pipeline.gather_once == "auto" && setup.options.engine.mesh.pipeline > 1)
    fmt::print("gather    once for a chunk's microbatches in a row: {} (auto)\n",
               setup.options.engine.strategy.pipeline.gather_once);
  if (setup.config.offload.states_on_device == kAuto)
    fmt::print("states    {:.0f} % of the units keep theirs on the device (auto)\n",
               100 * setup.options.engine.strategy.offload.states_on_device);
  if (setup.config.strategy.recompute == "auto") fmt::print("recompute {} (auto)\n", chosen_words(setup));
  if (has_grid(setup.options.engine.mesh)) fmt::print("\n{}", mesh_grid(setup, plans.by_pipeline_rank));
  fmt::print("\n{}\n", plans.table());
  fmt::print("arena     {} bytes, of which {} persist; no plan can take less than {}\n",
             count(device.arena_bytes), count(device.persistent_bytes), count(device.live_peak_bytes));
  fmt::print("peak      at {} of the {} program\n", instruction, name_of(at_peak.kind));
  const std::int64_t budget = setup.options.engine.device_memory_bytes;
  if (budget > 0)
    fmt::print("budget    {} bytes: {}\n", count(budget),
               device.arena_bytes <= budget
                   ? "it fits"
                   : fmt::format("{} bytes are missing", count(device.arena_bytes - budget)));

  if (show.why) fmt::print("\n{}", describe_largest(plan.programs, plan.memory, Space::device, kLargest));
  if (page) {
    page.stream() << memory_page(plan.programs, plan.memory, Space::device, page_title(setup, plans.fullest));
    page.commit();
  }

  nlohmann::json result = memory_json(plans);
  result["parameter_numel"] = setup.model->parameter_numel();
  result["ranks"] = setup.world();
  result["mesh"] = mesh_json(setup, plans.by_pipeline_rank);
  result["stage"] = setup.config.strategy.stage;
  result["resident_units"] = setup.options.engine.strategy.resident_units;
  result["activations"] = activations_json(setup);
  result["tokens_per_step"] = setup.tokens_per_step();
  result["peak_instruction"] = instruction;
  result["peak_program"] = name_of(at_peak.kind);
  result["budget_bytes"] = budget;
  for (const LiveBuffer& live : largest_at_peak(plan.programs, plan.memory, Space::device, kLargest)) {
    const Buffer& buffer =
        plan.programs[static_cast<std::size_t>(live.program)].buffers[static_cast<std::size_t>(live.buffer)];
    result["largest_at_peak"].push_back(
        {{"name", buffer.name}, {"category", name_of(buffer.category)}, {"bytes", buffer.bytes}});
  }
  result["fits"] = budget == 0 || device.arena_bytes <= budget;
  write_json(file, result);
  return 0;
}

}  // namespace tessera::cli
