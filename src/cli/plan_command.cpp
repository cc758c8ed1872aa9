// `tessera plan` and `tessera simulate`: what the programs of a run say without running.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "src/cli/commands.h"
#include "src/cli/memory_report.h"
#include "src/cli/mesh_report.h"
#include "src/cli/output.h"
#include "src/cli/setup.h"
#include "tessera/memory_report.h"
#include "tessera/simulate.h"

namespace tessera::cli {

namespace {

void print_model(const Setup& setup) {
  const auto print_dimensions = [&](const auto& model) {
    fmt::print("model     {} parameters, {} layers, {} channels, {} heads, vocabulary {}, {}\n",
               count(setup.model->parameter_numel()), model.layers, model.channels, model.heads,
               model.vocabulary, setup.config.precision.parameters);
  };
  std::visit(print_dimensions, setup.dimensions);
  fmt::print("ranks     {} ({}), stage {}\n", setup.world(), to_string(setup.options.engine.mesh),
             setup.config.strategy.stage);
  fmt::print("step      {} tokens: {} microbatch{} of {} × {} on each rank\n", count(setup.tokens_per_step()),
             setup.options.microbatches, setup.options.microbatches == 1 ? "" : "es",
             setup.options.batch.sequences, setup.options.batch.length);
}

constexpr int kLargest = 10;

std::string page_title(const Setup& setup) {
  return fmt::format("{}, stage {}, {} rank{}: memory of a rank", setup.config.model.preset,
                     setup.config.strategy.stage, setup.world(), setup.world() == 1 ? "" : "s");
}

void write_json(OutputFile& file, const nlohmann::json& result) {
  if (!file) return;
  file.stream() << result.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) << "\n";
  file.commit();
}

}  // namespace

int plan_command(const RunArguments& arguments, const PlanArguments& show) {
  OutputFile file = arguments.json.empty() ? OutputFile() : OutputFile(arguments.json);
  OutputFile page = show.html.empty() ? OutputFile() : OutputFile(show.html);
  const Setup setup = make_setup(load_config(arguments.config, arguments.settings));
  const int fullest = fullest_pipeline_rank(*setup.model, setup.options);
  const TrainerPlan plan = plan_trainer(*setup.model, setup.options, fullest);
  const SpacePlan& device = plan.memory.space(Space::device);
  const Program& at_peak = plan.programs.at(static_cast<std::size_t>(device.peak_program));
  const std::string instruction = describe(at_peak, device.peak_instruction);
  print_model(setup);
  if (setup.config.strategy.resident_units == kAuto)
    fmt::print("resident  {} units keep their parameters (auto)\n",
               setup.options.engine.strategy.resident_units);
  if (const std::string grid = mesh_grid(setup); !grid.empty()) fmt::print("\n{}", grid);
  if (setup.options.engine.mesh.pipeline > 1) fmt::print("\nof pipeline rank {}, the fullest:", fullest);
  fmt::print("\n{}\n", memory_table(*setup.model, setup.options, fullest));
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
    page.stream() << memory_page(plan.programs, plan.memory, Space::device, page_title(setup));
    page.commit();
  }

  nlohmann::json result = memory_json(setup);
  result["parameter_numel"] = setup.model->parameter_numel();
  result["ranks"] = setup.world();
  result["mesh"] = mesh_json(setup);
  result["stage"] = setup.config.strategy.stage;
  result["resident_units"] = setup.options.engine.strategy.resident_units;
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

int simulate_command(const RunArguments& arguments, const ClusterArguments& cluster) {
  OutputFile file = arguments.json.empty() ? OutputFile() : OutputFile(arguments.json);
  OutputFile trace = cluster.trace.empty() ? OutputFile() : OutputFile(cluster.trace);
  const Setup setup = make_setup(load_config(arguments.config, arguments.settings));
  const TrainerPlan plan = plan_trainer(*setup.model, setup.options);
  CostModel cost;
  cost.flops_per_us = cluster.gflops * 1e3;
  cost.memory_bytes_per_us = cluster.memory_gigabytes * 1e3;
  cost.cluster.inside = {.alpha_us = cluster.latency_us, .bytes_per_us = cluster.link_gigabytes * 1e3};
  cost.forward_flops = setup.model->forward_flops(setup.options.batch, setup.options.engine.threads_per_rank);
  const Program& program = plan.programs.front();
  const Timeline line = simulate(program, plan.layout, setup.options.engine.mesh, cost);
  const double tokens_per_second = static_cast<double>(setup.tokens_per_step()) / line.total_us * 1e6;
  print_model(setup);
  fmt::print("\nstep           {:>12.3f} ms\n  compute      {:>12.3f} ms\n  communication{:>12.3f} ms\n",
             line.total_us / 1e3, line.compute_us / 1e3, line.communication_us / 1e3);
  fmt::print("  exposed      {:>12.3f} ms\nhidden         {:>12.1f} %\ntokens/s       {:>12.0f}\n",
             line.exposed_us / 1e3, line.hidden() * 100.0, tokens_per_second);
  if (trace) {
    write_chrome_trace(trace.stream(), program, line.spans, 0);
    trace.commit();
  }
  write_json(file, {{"total_us", line.total_us},
                    {"compute_us", line.compute_us},
                    {"communication_us", line.communication_us},
                    {"exposed_us", line.exposed_us},
                    {"hidden", line.hidden()},
                    {"tokens_per_second", tokens_per_second},
                    {"ranks", setup.world()}});
  return 0;
}

}  // namespace tessera::cli
