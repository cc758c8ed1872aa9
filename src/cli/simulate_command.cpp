// `tessera simulate`: how long a step of a run takes on a described cluster, without running.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <initializer_list>

#include "src/cli/commands.h"
#include "src/cli/places.h"
#include "src/cli/plan_report.h"
#include "src/cli/report.h"
#include "src/cli/utilisation.h"
#include "tessera/exposed.h"
#include "tessera/simulate.h"

namespace tessera::cli {

namespace {

constexpr double kLongest_us = 3e19;  // a million years

// The training programs of all ranks, as they will run, and what each pipeline rank takes at most in each
// space.
struct Plans {
  IdVector<Program> programs;  // in the order of plan_pipeline()
  IdVector<int> of_ranks;      // WorldPrograms::program_of_rank
  IdVector<ArenaBytes> bytes;  // by pipeline rank
  Layout layout;

  Plans(std::vector<TrainerPlan> plans, const Mesh& mesh)
      : bytes(mesh.pipeline), layout(plans.front().layout) {
    std::vector<int> first_data_ranks;
    for (TrainerPlan& plan : plans) {
      const std::size_t place = programs.size() % bytes.size();
      if (place == 0) first_data_ranks.push_back(plan.first_data_rank);
      programs.push_back(std::move(plan.programs.front()));
      const ArenaBytes more = arena_bytes(plan.memory);
      for (std::size_t space = 0; space < more.size(); ++space)
        bytes[place][space] = std::max(bytes[place][space], more[space]);
    }
    of_ranks = programs_of_ranks(mesh, first_data_ranks);
  }
  std::int64_t most_bytes(Space space) const {
    std::int64_t most = 0;
    for (const auto& of_rank : bytes) most = std::max(most, of_rank[space]);
    return most;
  }
};

CostModel cost_of(const Setup& setup, const ClusterArguments& arguments) {
  CostModel cost;
  cost.flops_per_us = arguments.gflops * 1e3;
  cost.memory_bytes_per_us = arguments.memory_gigabytes * 1e3;
  cost.host_memory_bytes_per_us = arguments.host_memory_gigabytes * 1e3;
  cost.host_link_bytes_per_us = arguments.host_link_gigabytes * 1e3;
  cost.disk_bytes_per_us = arguments.disk_gigabytes * 1e3;
  cost.compute_issues = setup.options.engine.device == DeviceType::cpu;
  Cluster& cluster = cost.cluster;
  cluster.ranks_per_node = arguments.ranks_per_node;
  cluster.inside = {.alpha_us = arguments.inner_latency_us,
                    .bytes_per_us = arguments.inner_link_gigabytes * 1e3};
  cluster.between = {.alpha_us = arguments.outer_latency_us,
                     .bytes_per_us = arguments.outer_link_gigabytes * 1e3};
  cluster.algorithm = collective_algorithm_named(arguments.collectives).value_or(cluster.algorithm);
  cost.part_flops = setup.model->part_flops(setup.options.batch, target_of(setup.options));
  return cost;
}

// Means over the ranks at one place along the pipeline axis.
struct Row {
  double compute_us = 0, passes_us = 0, communication_us = 0, exposed_us = 0, idle_us = 0;
  int ranks = 0;
};

std::vector<Row> rows_of(const WorldTimeline& world, std::size_t pipeline) {
  std::vector<Row> rows(pipeline);
  for (const RankTimeline& of : world.ranks) {
    Row& row = rows[static_cast<std::size_t>(of.program) % pipeline];
    const double before = row.ranks, all = row.ranks + of.ranks;
    const auto mean = [&](double& so_far, double more) {
      so_far = (so_far * before + more * of.ranks) / all;
    };
    mean(row.compute_us, of.timeline.compute_us);
    mean(row.passes_us, of.passes_us);
    mean(row.communication_us, of.timeline.communication_us);
    mean(row.exposed_us, of.timeline.exposed_us);
    mean(row.idle_us, world.total_us - of.timeline.compute_us);
    row.ranks += of.ranks;
  }
  return rows;
}

struct Figures {
  double tokens_per_second = 0;
  double model_flops_utilisation = 0;  // of the peak; what recomputation repeats does not count
  IdArray<double, kGroups> exposed_along_us = {};
};

// Of one rank's device, 10^9 a second. What the options say of it was checked with them.
double peak_gflops(const Setup& setup, const ClusterArguments& arguments) {
  if (arguments.peak_gflops > 0) return arguments.peak_gflops;
  const double tflops = setup.config.run.peak_tflops;
  if (tflops == 0.0) return arguments.gflops;
  if (tflops * 1e3 < arguments.gflops)
    throw UsageError(fmt::format(
        "run.peak_tflops is {:g}, {:g} GFLOP/s, below --gflops, {:g}: no module exceeds its device's peak; "
        "give --gflops or --peak-gflops as the cluster has it",
        tflops, tflops * 1e3, arguments.gflops));
  return tflops * 1e3;
}

Figures figures_of(const Setup& setup, double peak_gflops, double total_us) {
  const double rate = static_cast<double>(setup.tokens_per_step()) / total_us * 1e6;
  return {.tokens_per_second = rate,
          .model_flops_utilisation = *utilisation_of(setup, 1e9 * peak_gflops).share(rate)};
}

bool uses(const std::vector<Program>& programs, std::initializer_list<Lane> lanes) {
  return std::ranges::any_of(programs, [&](const Program& program) {
    return std::ranges::any_of(program.instructions, [&](const Instruction& instruction) {
      return std::ranges::find(lanes, instruction.lane) != lanes.end();
    });
  });
}

// The rates that this step's time depends on.
void print_rates(const Plans& plans, const CostModel& cost) {
  fmt::print("a rank    {:g} GFLOP/s, memory {:g} GB/s", cost.flops_per_us / 1e3,
             cost.memory_bytes_per_us / 1e3);
  if (uses(plans.programs, {Lane::host}))
    fmt::print(", the host's {:g}", cost.host_memory_bytes_per_us / 1e3);
  if (uses(plans.programs, {Lane::upload, Lane::download}))
    fmt::print("; to and from the host {:g} GB/s", cost.host_link_bytes_per_us / 1e3);
  if (uses(plans.programs, {Lane::io})) fmt::print("; disk {:g} GB/s", cost.disk_bytes_per_us / 1e3);
  fmt::print("\n");
}

void print_cluster(const Setup& setup, const Cluster& cluster) {
  const auto link = [](const LinkCost& of) {
    return fmt::format("{:g} GB/s, {:g} µs", of.bytes_per_us / 1e3, of.alpha_us);
  };
  const int nodes = cluster.node_of(setup.world() - 1) + 1;
  fmt::print("cluster   {} node{}: {} inside", nodes, nodes == 1 ? "" : "s", link(cluster.inside));
  if (nodes > 1) fmt::print(", {} between", link(cluster.between));
  fmt::print("; collectives {}\n", name_of(cluster.algorithm));
}

void print_rate(double tokens_per_second) {
  if (std::isfinite(tokens_per_second) && (tokens_per_second >= 10 || tokens_per_second == 0))
    fmt::print("{:<22}{:>12.0f}\n", "tokens/s", tokens_per_second);
  else
    fmt::print("{:<22}{:>12.3g}\n", "tokens/s", tokens_per_second);
}

void print_result(const WorldTimeline& world, const Figures& figures, const std::vector<Row>& rows,
                  const Plans& plans) {
  // All times in one unit, so that columns compare.
  const bool long_step = world.total_us >= 100e6;
  const double unit_us = long_step ? 1e6 : 1e3;
  const char* const unit = long_step ? "s" : "ms";
  const auto time = [&](const char* what, double us) {
    fmt::print("{:<22}{:>12.3f} {}\n", what, us / unit_us, unit);
  };
  const auto percent = [](const char* what, double share) {
    fmt::print("{:<22}{:>12.1f} %\n", what, share * 100);
  };
  fmt::print("\n");
  time("step", world.total_us);
  time("  forward, backward", world.passes_span_us);
  if (rows.size() > 1) percent("  bubble of that", world.bubble);
  time("exposed communication", world.exposed_us);
  for (int axis = 0; axis < kGroups; ++axis)
    if (figures.exposed_along_us[axis] > 0)
      time(fmt::format("  along {}", name_of(static_cast<Axis>(axis))).c_str(),
           figures.exposed_along_us[axis]);
  percent("utilisation", world.utilisation);
  percent("model FLOPs of peak", figures.model_flops_utilisation);
  if (figures.model_flops_utilisation > 1)
    fmt::print(
        "  above 100 %: attention of masked pairs of tokens counts as the model's, and takes no time\n");
  print_rate(figures.tokens_per_second);
  const auto column = [&](const char* what) { return fmt::format("{} {}", what, unit); };
  const ArenaColumns arenas(plans.bytes);
  fmt::print("\n{:>8}{:>8}{:>14}{:>20}{:>14}{:>14}{}\n", "pipeline", "ranks", column("compute"),
             column("communication"), column("exposed"), column("idle"), arenas.heading());
  for (std::size_t rank = 0; rank < rows.size(); ++rank) {
    const Row& row = rows[rank];
    fmt::print("{:>8}{:>8}{:>14.3f}{:>20.3f}{:>14.3f}{:>14.3f}{}\n", rank, row.ranks,
               row.compute_us / unit_us, row.communication_us / unit_us, row.exposed_us / unit_us,
               row.idle_us / unit_us, arenas.line(plans.bytes[rank]));
  }
  if (std::ranges::any_of(rows, [&](const Row& row) { return row.communication_us > world.total_us; }))
    fmt::print(
        "\nnote      communication takes longer than the step: lanes that communicate at once each have the "
        "link to\n          themselves; on one that they share the step takes longer\n");
}

nlohmann::json cluster_json(const CostModel& cost) {
  const Cluster& cluster = cost.cluster;
  const auto link = [](const LinkCost& of) -> nlohmann::json {
    return {{"latency_us", of.alpha_us}, {"bytes_per_us", of.bytes_per_us}};
  };
  return {{"ranks_per_node", cluster.ranks_per_node},
          {"inner_link", link(cluster.inside)},
          {"outer_link", link(cluster.between)},
          {"collectives", name_of(cluster.algorithm)},
          {"flops_per_us", cost.flops_per_us},
          {"memory_bytes_per_us", cost.memory_bytes_per_us},
          {"host_memory_bytes_per_us", cost.host_memory_bytes_per_us},
          {"host_link_bytes_per_us", cost.host_link_bytes_per_us},
          {"disk_bytes_per_us", cost.disk_bytes_per_us}};
}

nlohmann::json result_json(const Setup& setup, const WorldTimeline& world, const Figures& figures,
                           const std::vector<Row>& rows, const Plans& plans) {
  const Mesh& mesh = setup.options.engine.mesh;
  nlohmann::json by_pipeline_rank = nlohmann::json::array();
  for (std::size_t rank = 0; rank < rows.size(); ++rank) {
    by_pipeline_rank.push_back({{"ranks", rows[rank].ranks},
                                {"compute_us", rows[rank].compute_us},
                                {"passes_us", rows[rank].passes_us},
                                {"communication_us", rows[rank].communication_us},
                                {"exposed_us", rows[rank].exposed_us},
                                {"idle_us", rows[rank].idle_us}});
    add_arenas(by_pipeline_rank.back(), plans.bytes[rank]);
  }
  nlohmann::json along = nlohmann::json::object();
  for (int axis = 0; axis < kGroups; ++axis)
    along[std::string(name_of(static_cast<Axis>(axis)))] = figures.exposed_along_us[axis];
  return {{"ranks", setup.world()},
          {"mesh",
           {{"pipeline", mesh.pipeline},
            {"replicate", mesh.replicate},
            {"shard", mesh.shard},
            {"tensor", mesh.tensor}}},
          {"total_us", world.total_us},
          {"passes_span_us", world.passes_span_us},
          {"bubble", world.bubble},
          {"exposed_us", world.exposed_us},
          {"exposed_along_us", std::move(along)},
          {"utilisation", world.utilisation},
          {"model_flops_utilisation", figures.model_flops_utilisation},
          {"tokens_per_second", figures.tokens_per_second},
          {"pipeline_ranks", std::move(by_pipeline_rank)}};
}

}  // namespace

int simulate_command(const RunArguments& arguments, const ClusterArguments& cluster, ResultFile& file) {
  const Config config = load_config(arguments.config, arguments.settings, arguments.ranks);
  check_apart(config, arguments.config, {file.named(), {"--trace", cluster.trace}});
  file.open();
  OutputFile trace("--trace", cluster.trace);
  const Setup setup = make_setup(config);
  const double peak = peak_gflops(setup, cluster);
  const Mesh& mesh = setup.options.engine.mesh;
  const Plans plans(plan_pipeline(*setup.model, setup.options), mesh);
  const CostModel cost = cost_of(setup, cluster);
  const WorldPrograms programs = {
      .mesh = mesh, .programs = plans.programs, .program_of_rank = plans.of_ranks};
  const WorldTimeline world = simulate(programs, plans.layout, cost);
  if (!std::isfinite(world.total_us) || world.total_us > kLongest_us)
    throw UsageError("a step would take more than a million years; give the rates in the units of --help");
  Figures figures = figures_of(setup, peak, world.total_us);
  figures.exposed_along_us = exposed_along_us(programs, world);
  const std::vector<Row> rows = rows_of(world, plans.bytes.size());
  print_notes(setup.config);
  print_model(setup);
  const EngineOptions& engine = setup.options.engine;
  print_budget("run.device_memory", engine.budget.device_bytes, plans.most_bytes(Space::device));
  print_budget("run.host_memory", engine.budget.host_bytes, plans.most_bytes(Space::host));
  print_rates(plans, cost);
  print_cluster(setup, cost.cluster);
  print_result(world, figures, rows, plans);
  if (trace) {
    write_chrome_trace(trace.stream(), plans.programs, world);
    trace.commit();
  }
  nlohmann::json result = result_json(setup, world, figures, rows, plans);
  result["cluster"] = cluster_json(cost);
  file.write(result);
  return 0;
}

}  // namespace tessera::cli
