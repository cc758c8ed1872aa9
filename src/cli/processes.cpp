#include "src/cli/processes.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string_view>

namespace tessera::cli {
namespace {

constexpr int kMostThreads = 1024;  // ranks of one process

void check_count(const Setup& setup, int processes) {
  const int ranks = setup.world();
  if (processes == ranks) return;
  const Mesh& mesh = setup.options.engine.mesh;
  const int others = ranks / mesh.shard;
  const std::string remedy =
      processes % others == 0
          ? fmt::format("set mesh.shard = {}, as --ranks {} does", processes / others, processes)
          : fmt::format("change mesh.pipeline × mesh.replicate, {} × {}, which must divide them",
                        mesh.pipeline, mesh.replicate);
  throw UsageError(fmt::format(
      "the mesh has {} rank{}, but {} process{} started, each of which is one: {}, or "
      "start {}",
      ranks, ranks == 1 ? "" : "s", processes, processes == 1 ? " was" : "es were", remedy, ranks));
}

// The world of ranks that a launcher's variables connect. On GPUs it carries what is small, NCCL all else.
Communicator world_by_variables(const Setup& setup) {
  ControlOptions options = control_options_from_environment();
  check_count(setup, options.world);
  options.deadline = setup.options.engine.waits.deadline;
  Communicator control = make_control_world(options);
  if (setup.options.engine.device == DeviceType::cuda) return control;
  return make_process_world(control, {.address = options.address});
}

// Whether something is chosen as the budgets allow: for all ranks, which have one program.
bool chooses_by_budgets(const Config& config) {
  const bool pipelined = config.mesh.pipeline > 1;
  return (pipelined && (config.pipeline.cuts == "balanced" || config.pipeline.gather_once == "auto")) ||
         config.strategy.recompute == "auto" || config.strategy.resident_units == kAuto ||
         config.offload.states_on_device == kAuto;
}

// Without what a rank may have by itself; of paths, and of budgets that only bound, whether there is one.
Config shared_part(Config config, bool budgets_choose) {
  const RunConfig none;
  RunConfig& run = config.run;
  for (std::string* path :
       {&config.data.train, &config.data.validation, &config.model.weights, &config.model.adapter,
        &config.offload.directory, &run.checkpoint, &run.export_path})
    if (!path->empty()) *path = "given";
  run.metrics = run.tensorboard = run.trace = "";
  run.trace_steps = none.trace_steps;
  run.peak_tflops = none.peak_tflops;
  run.pin = none.pin;
  if (!budgets_choose && !chooses_by_budgets(config))
    for (std::int64_t* budget : {&run.device_memory, &run.host_memory}) *budget = *budget > 0 ? 1 : 0;
  run.deadline = none.deadline;
  return config;
}

// What this rank has otherwise than rank 0; empty where nothing is.
std::string difference_from(const nlohmann::json& first, const nlohmann::json& own, const Config& config,
                            int rank) {
  const auto parsed = [](const nlohmann::json& of) {
    return parse_config(of.at("configuration").get<std::string>(), "configuration");
  };
  const std::string keys = fmt::format("{}", fmt::join(differences(parsed(first), parsed(own)), ", "));
  if (!keys.empty())
    return fmt::format("rank {} was given another configuration than rank 0 ({}); all ranks need the same",
                       rank, keys);
  for (const auto& [key, path] : {std::pair<const char*, std::string>{"data.train", config.data.train},
                                  {"data.validation", config.data.validation}})
    if (first.at(key) != own.at(key))
      return fmt::format("rank {} finds {} at {}, '{}', and rank 0 {}; all ranks must read the same", rank,
                         own.at(key).get<std::string>(), key, path, first.at(key).get<std::string>());
  return {};
}

}  // namespace

void check_same_run(Communicator world, const Config& config, const Data* data, bool budgets_choose) {
  if (!world) return;
  const nlohmann::json own = {{"configuration", to_toml(shared_part(config, budgets_choose))},
                              {"data.train", data ? data->train_identity : ""},
                              {"data.validation", data ? data->validation_identity : ""}};
  const nlohmann::json first =
      nlohmann::json::parse(broadcast_text(world, own.dump(), 0, {.operation = "configuration"}));
  struct Report {
    char difference[1020] = {};
  };
  Report mine;
  difference_from(first, own, config, world.rank()).copy(mine.difference, sizeof mine.difference - 1);
  IdVector<Report> all(world.world());
  world.all_gather(&mine, all.data(), sizeof mine, {.operation = "comparing configurations"});
  for (const Report& one : all)
    if (one.difference[0] != '\0') throw UsageError(one.difference);
}

bool ranks_are_processes() { return launched_by_mpi() || launched_by_variables(); }

bool is_first_process() {
  if (!ranks_are_processes()) return true;
  for (const char* variable : {"OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK", "RANK"})
    if (const char* const rank = std::getenv(variable)) return std::string_view(rank) == "0";
  return true;
}

bool left_to_first_process() { return launched_by_mpi() && !is_first_process(); }

void check_threads(const Setup& setup) {
  if (!ranks_are_processes() && setup.world() > kMostThreads)
    throw UsageError(
        fmt::format("the mesh ({}) has {} ranks; they are threads of one process here, at most {}",
                    to_string(setup.options.engine.mesh), setup.world(), kMostThreads));
}

Communicator world_of_processes(const Setup& setup) {
  if (!ranks_are_processes()) return {};
  check_launchers();
  if (!launched_by_mpi()) return world_by_variables(setup);
  Communicator world = make_mpi_world({.deadline = setup.options.engine.waits.deadline});
  check_count(setup, world.world());
  return world;
}

}  // namespace tessera::cli
