// How many bytes a rank takes: for models × stages × ranks, what the plan predicts by category, and, for runs
// that fit this machine, what the operating system measures while two steps run. Under mpirun the processes
// are the ranks of what is measured.
//   memory_footprint [--models A,B] [--stages 0,3] [--ranks 1,64] [--offload-states device,host,disk]
//                    [--offload-parameters device,host,disk] [--measure GIB] [--check] [--csv F] [--json F]
//   memory_footprint --formula
// The latter prints the model states of the ZeRO paper (Rajbhandari et al. 2020, figure 1).
#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>

#include "tessera/communicator.h"
#include "tessera/error.h"
#include "tessera/machine.h"
#include "tessera/memory_report.h"
#include "tessera/model.h"
#include "tessera/trainer.h"

namespace tessera {
namespace {

struct Options {
  std::vector<std::string> models;
  std::vector<int> stages = {0, 1, 2, 3};
  std::vector<int> ranks = {1, 8, 64};
  std::vector<std::string> states = {"device"}, shards = {"device"};  // names of spaces where these live
  std::vector<std::string> activations = {"device"};
  double states_on_device = 0;
  std::string directory = ".";
  std::string parameters = "bf16", moments = "fp32";
  Recompute recompute = Recompute::none;
  UpdateWhen update = UpdateWhen::decided;
  std::int64_t sequences = 1;
  std::int64_t length = 1024;
  int microbatches = 1;
  double measure_gib = 0;
  bool formula = false, check = false;
  std::string csv, json;
};

// Models of known dimensions that are no preset of the library.
const std::map<std::string, Gpt2Config> kOthers = {
    {"gpt-23m", {.vocabulary = 8192, .context = 256, .layers = 6, .heads = 8, .channels = 512}},
    {"gpt-6.7b", {.context = 2048, .layers = 32, .heads = 32, .channels = 4096}},
    {"gpt-13b", {.context = 2048, .layers = 40, .heads = 40, .channels = 5120}},
    {"gpt-175b", {.context = 2048, .layers = 96, .heads = 96, .channels = 12288}},
};

std::vector<std::string> all_models() {
  std::vector<std::string> names = Gpt2Config::presets();
  for (const std::string& name : LlamaConfig::presets()) names.push_back(name);
  for (const auto& [name, dimensions] : kOthers) names.push_back(name);
  std::erase_if(names, [](const std::string& name) { return name.ends_with("-tiny"); });
  return names;
}

std::int64_t context_of(const std::string& name) {
  if (const auto other = kOthers.find(name); other != kOthers.end()) return other->second.context;
  return name.starts_with("llama") ? LlamaConfig::preset(name).context : Gpt2Config::preset(name).context;
}

Model model_of(const std::string& name, DType type) {
  if (const auto other = kOthers.find(name); other != kOthers.end()) return make_gpt2(other->second, type);
  return name.starts_with("llama") ? make_llama(LlamaConfig::preset(name), type)
                                   : make_gpt2(Gpt2Config::preset(name), type);
}

std::vector<std::string> space_names() {
  std::vector<std::string> names;
  for (int space = 0; space < kSpaces; ++space) names.emplace_back(name_of(static_cast<Space>(space)));
  return names;
}

Space space_of(const std::string& name) {
  const std::vector<std::string> names = space_names();
  return static_cast<Space>(std::ranges::find(names, name) - names.begin());
}

struct Row {
  std::string model;
  std::int64_t parameters = 0;
  int stage = 0;
  int ranks = 0;
  Offload offload;
  MemoryPlan plan;
  std::optional<std::int64_t> measured;  // bytes a rank, of device and host

  // What a process holds on the CPU, where the device is memory of the host, too.
  std::int64_t predicted_in_memory() const {
    return plan.space(Space::device).arena_bytes + plan.space(Space::host).arena_bytes;
  }
};

std::string describe(const Row& row) {
  return fmt::format(
      "{} on {} ranks at stage {} with states on the {}, parameters on the {} and activations on the {}",
      row.model, row.ranks, row.stage, name_of(row.offload.states), name_of(row.offload.parameters),
      name_of(row.offload.activations));
}

TrainerOptions trainer_options(const Options& options, const Row& row) {
  TrainerOptions made;
  made.engine.mesh.shard = row.ranks;
  made.engine.strategy.placements = Placements::of_stage(row.stage);
  made.engine.strategy.update = options.update;
  made.engine.strategy.recompute = options.recompute;
  made.engine.strategy.offload = row.offload;
  made.engine.disk_directory = options.directory;
  made.engine.optimizer.options = AdamWOptions{};
  made.engine.optimizer.moment_type = parse_dtype(options.moments);
  made.engine.optimizer.groups = {{.name = "decay"}, {.name = "no_decay"}};
  made.batch = {.sequences = options.sequences, .length = std::min(options.length, context_of(row.model))};
  made.microbatches = options.microbatches;
  return made;
}

// Two steps on made-up tokens.
void train(Trainer& trainer, const TrainerOptions& options) {
  for (int step = 0; step < 2; ++step)
    trainer.train_step(1e-4, [&](int, void* batch) {
      auto* tokens = static_cast<std::int32_t*>(batch);
      for (std::int64_t t = 0; t < 2 * options.batch.tokens(); ++t)
        tokens[t] = static_cast<std::int32_t>(t % 251);
    });
}

// The ranks as threads of this process: how much it grew at its peak.
std::int64_t growth_of_a_run(const Options& options, const Row& row, DType type) {
  const auto model = std::make_shared<const Model>(model_of(row.model, type));
  const TrainerOptions made = trainer_options(options, row);
  reset_peak_memory();
  const std::int64_t before = read_process_memory().resident_bytes;
  run_local(row.ranks, {}, [&](Communicator world) {
    Trainer trainer(world, model, made);
    train(trainer, made);
  });
  return read_process_memory().peak_resident_bytes - before;
}

// In a child of its own, so that no run counts what an earlier one left.
std::int64_t measure(const Options& options, const Row& row, DType type) {
  int ends[2];
  if (pipe(ends) != 0) throw EnvironmentError("no pipe to a child process");
  std::fflush(stdout);
  const pid_t child = fork();
  if (child < 0) throw EnvironmentError("cannot start a child process");
  if (child == 0) {
    int status = 1;
    try {
      const std::int64_t bytes = growth_of_a_run(options, row, type);
      status = write(ends[1], &bytes, sizeof bytes) == sizeof bytes ? 0 : 1;
    } catch (const std::exception& error) {
      std::fprintf(stderr, "memory_footprint: %s\n", error.what());
    }
    std::_Exit(status);
  }
  close(ends[1]);
  std::int64_t bytes = 0;
  const bool whole = read(ends[0], &bytes, sizeof bytes) == sizeof bytes;
  close(ends[0]);
  int status = 0;
  waitpid(child, &status, 0);
  if (!whole || status != 0) throw EnvironmentError(fmt::format("the run of {} failed", describe(row)));
  return bytes / row.ranks;
}

// What this process, a rank of `world`, takes at the plan's peak besides the arenas: its part of what
// processes share.
std::int64_t besides_arenas(Communicator world, Model model, const TrainerOptions& options) {
  Trainer trainer(std::move(world), std::make_shared<const Model>(std::move(model)), options);
  std::int64_t bytes = 0;
  trainer.engine().set_peak_observer([&] { bytes = std::max(bytes, read_proportional_bytes()); });
  train(trainer, options);
  const MemoryPlan& plan = trainer.engine().plan();
  return bytes - plan.space(Space::device).arena_bytes - plan.space(Space::host).arena_bytes;
}

// The arenas and what a run takes more than one of next to no parameters does.
std::int64_t measure_processes(Communicator& world, const Options& options, const Row& row, DType type) {
  const TrainerOptions made = trainer_options(options, row);
  const Gpt2Config empty = {
      .vocabulary = 256, .context = made.batch.length, .layers = 1, .heads = 1, .channels = 16};
  const std::int64_t besides = besides_arenas(world, make_gpt2(empty, type), made);
  auto more = static_cast<double>(besides_arenas(world, model_of(row.model, type), made) - besides);
  world.all_reduce(&more, 1);
  return row.predicted_in_memory() + static_cast<std::int64_t>(more) / row.ranks;
}

bool to_be_measured(const Communicator& world, const Options& options, const Row& row) {
  if (static_cast<double>(row.predicted_in_memory()) * row.ranks >= options.measure_gib * 0x1p30)
    return false;
  return !world || world.world() == row.ranks;
}

// A row for each number of ranks, stage, and places of states, parameters and activations that go together.
std::vector<Row> cases_of(const Options& options, const std::string& name, std::int64_t parameters) {
  std::vector<Row> rows;
  for (const int ranks : options.ranks)
    for (const int stage : options.stages)
      for (const std::string& states : options.states)
        for (const std::string& shards : options.shards)
          for (const std::string& activations : options.activations) {
            const Offload offload = {.states = space_of(states),
                                     .states_on_device = options.states_on_device,
                                     .parameters = space_of(shards),
                                     .activations = space_of(activations)};
            if (offload.parameters != Space::device && stage < 3) continue;  // only what is sharded leaves it
            rows.push_back({.model = name,
                            .parameters = parameters,
                            .stage = stage,
                            .ranks = ranks,
                            .offload = offload,
                            .plan = {},
                            .measured = {}});
          }
  return rows;
}

// `world` is empty where ranks are threads.
std::vector<Row> rows_of(Communicator& world, const Options& options) {
  const DType type = options.parameters == "fp32" ? DType::fp32 : DType::bf16;
  std::vector<Row> rows;
  for (const std::string& name : options.models) {
    const Model model = model_of(name, type);
    for (Row& row : cases_of(options, name, model.parameter_numel())) {
      row.plan = plan_trainer(model, trainer_options(options, row)).memory;
      if (to_be_measured(world, options, row))
        row.measured = world ? measure_processes(world, options, row, type) : measure(options, row, type);
      rows.push_back(std::move(row));
    }
  }
  return rows;
}

std::string gib(std::int64_t bytes) { return fmt::format("{:.3f}", static_cast<double>(bytes) / 0x1p30); }

// A line for each space that holds anything; what is measured is of device and host together.
void print_table(const std::vector<Row>& rows) {
  fmt::print("GiB a rank, at each space's peak\n{:<12}{:>9}{:>6}{:>6}{:>8}{:>12}{:>13}{:>8}", "model",
             "10^9 par.", "ranks", "stage", "states", "parameters", "activations", "space");
  for (int category = 0; category < kCategories; ++category)
    fmt::print("{:>20}", name_of(static_cast<Category>(category)));
  fmt::print("{:>11}{:>11}\n", "predicted", "measured");
  for (const Row& row : rows)
    for (const Space space : spaces_held(row.plan)) {
      const SpacePlan& plan = row.plan.space(space);
      fmt::print("{:<12}{:>9.3f}{:>6}{:>6}{:>8}{:>12}{:>13}{:>8}", row.model,
                 static_cast<double>(row.parameters) / 1e9, row.ranks, row.stage, name_of(row.offload.states),
                 name_of(row.offload.parameters), name_of(row.offload.activations), name_of(space));
      for (const std::int64_t bytes : plan.at_peak) fmt::print("{:>20}", gib(bytes));
      fmt::print("{:>11}{:>11}\n", gib(plan.arena_bytes),
                 row.measured && space == Space::device ? gib(*row.measured) : "");
    }
}

// Whether what was measured is within 3% and 24 MiB of the plan; says where not, and where nothing was.
bool as_planned(const std::vector<Row>& rows) {
  bool ok = !rows.empty();
  for (const Row& row : rows) {
    const auto predicted = static_cast<double>(row.predicted_in_memory());
    if (!row.measured) {
      ok = false;
      fmt::print("{}: nothing was measured (see --measure); predicted {} GiB\n", describe(row),
                 gib(row.predicted_in_memory()));
    } else if (std::abs(static_cast<double>(*row.measured) - predicted) > 0.03 * predicted + 24 * 0x1p20) {
      ok = false;
      fmt::print("{}: measured {} GiB, predicted {} GiB: not within 3% and 24 MiB\n", describe(row),
                 gib(*row.measured), gib(row.predicted_in_memory()));
    }
  }
  return ok;
}

nlohmann::json to_json(const SpacePlan& plan) {
  nlohmann::json categories = nlohmann::json::object();
  for (int category = 0; category < kCategories; ++category)
    categories[std::string(name_of(static_cast<Category>(category)))] =
        plan.at_peak[static_cast<std::size_t>(category)];
  return {{"categories", std::move(categories)},
          {"live_peak_bytes", plan.live_peak_bytes},
          {"predicted_bytes", plan.arena_bytes}};
}

// The device's figures, and those of host and disk under their names.
nlohmann::json to_json(const Row& row) {
  nlohmann::json result = to_json(row.plan.space(Space::device));
  result.update({{"model", row.model},
                 {"parameters", row.parameters},
                 {"ranks", row.ranks},
                 {"stage", row.stage},
                 {"offload",
                  {{"states", name_of(row.offload.states)},
                   {"states_on_device", row.offload.states_on_device},
                   {"parameters", name_of(row.offload.parameters)},
                   {"activations", name_of(row.offload.activations)}}},
                 {"host", to_json(row.plan.space(Space::host))},
                 {"disk", to_json(row.plan.space(Space::disk))}});
  if (row.measured) result["measured_bytes"] = *row.measured;
  return result;
}

void write_csv(std::ostream& out, const std::vector<Row>& rows) {
  out << "model,parameters,ranks,stage,states on,parameters on,activations on,space";
  for (int category = 0; category < kCategories; ++category)
    out << "," << name_of(static_cast<Category>(category)) << " bytes";
  out << ",live peak bytes,predicted bytes,measured bytes\n";
  for (const Row& row : rows)
    for (const Space space : spaces_held(row.plan)) {
      const SpacePlan& plan = row.plan.space(space);
      out << row.model << "," << row.parameters << "," << row.ranks << "," << row.stage << ","
          << name_of(row.offload.states) << "," << name_of(row.offload.parameters) << ","
          << name_of(row.offload.activations) << "," << name_of(space);
      for (const std::int64_t bytes : plan.at_peak) out << "," << bytes;
      out << "," << plan.live_peak_bytes << "," << plan.arena_bytes << ",";
      if (row.measured && space == Space::device) out << *row.measured;
      out << "\n";
    }
}

void write_json(std::ostream& out, const std::vector<Row>& rows) {
  nlohmann::json all = nlohmann::json::array();
  for (const Row& row : rows) all.push_back(to_json(row));
  out << all.dump(2) << "\n";
}

// A file that is there whole or not at all: made beside its place at once, so that a path that cannot be
// written is known before the work, and renamed by commit(). What is no regular file, or a link to one
// as /dev/stdout may be, is written in place. An empty path: no file.
class OutputFile {
 public:
  explicit OutputFile(const std::string& path) : path_(path), partial_(path) {
    if (path.empty()) return;
    std::error_code ignored;
    const auto there = std::filesystem::symlink_status(path, ignored);
    if (!std::filesystem::exists(there) || std::filesystem::is_regular_file(there)) partial_ += ".partial";
    out_.open(partial_);
    if (!out_) refuse();
  }
  ~OutputFile() {
    std::error_code ignored;
    if (partial_ != path_) std::filesystem::remove(partial_, ignored);
  }
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  std::ostream& stream() { return out_; }
  void commit() {
    if (path_.empty()) return;
    out_.close();
    if (!out_ || (partial_ != path_ && std::rename(partial_.c_str(), path_.c_str()) != 0)) refuse();
    partial_ = path_;
  }

 private:
  [[noreturn]] void refuse() const {
    throw EnvironmentError(fmt::format("cannot write '{}': {}", path_, std::strerror(errno)));
  }

  std::string path_, partial_;
  std::ofstream out_;
};

// Bytes a parameter of a kind of training, as docs/memory.md splits them.
struct StateBytes {
  double parameter, gradient, optimizer;
};

// What a rank keeps of the model states, from the layout as it is sharded, padding included.
double states_of(const Layout& layout, int stage, const StateBytes& bytes) {
  const auto whole = static_cast<double>(layout.total_numel() + layout.padding_numel());
  const auto part = whole / layout.shards();
  return bytes.parameter * (stage >= 3 ? part : whole) + bytes.gradient * (stage >= 2 ? part : whole) +
         bytes.optimizer * (stage >= 1 ? part : whole);
}

Layout layout_of(std::int64_t parameters, int ranks) {
  std::vector<UnitSpec> units;
  for (int unit = 0; unit < 50; ++unit)
    units.push_back(
        {fmt::format("unit.{}", unit),
         {{.name = fmt::format("weight.{}", unit), .shape = {parameters / 50}, .dtype = DType::bf16}}});
  return Layout(units, ranks);
}

void print_formula() {
  fmt::print(
      "model states, 10^9 bytes a rank\n"
      "7.5e9 parameters on 64 ranks, 16-bit parameters and gradients, fp32 master and moments (2 + 2 + "
      "12):\n");
  const Layout zero = layout_of(7'500'000'000, 64);
  for (int stage = 0; stage <= 3; ++stage)
    fmt::print("  stage {}  {:>7.1f}\n", stage, states_of(zero, stage, {2, 2, 12}) / 1e9);
  fmt::print("the same with the fp32 accumulator that this library keeps (2 + 4 + 12):\n");
  for (int stage = 0; stage <= 3; ++stage)
    fmt::print("  stage {}  {:>7.1f}\n", stage, states_of(zero, stage, {2, 4, 12}) / 1e9);
  fmt::print(
      "1e10 parameters on one device, fp16 gradients and an fp32 copy of them (2 + 2 + 4 + 12 = 20):\n"
      "           {:>7.1f}\n",
      states_of(layout_of(10'000'000'000, 1), 0, {2, 2 + 4, 12}) / 1e9);
}

template <class Enum>
void add_choice(CLI::App& app, const std::string& name, Enum& value, const std::vector<Enum>& all,
                const std::string& text) {
  std::vector<std::string> names;
  for (const Enum one : all) names.emplace_back(name_of(one));
  const auto choose = [&value, all](const std::string& chosen) {
    value = *std::ranges::find(all, chosen, [](Enum one) { return name_of(one); });
  };
  app.add_option_function<std::string>(name, choose, text)->check(CLI::IsMember(names));
}

// What no option knows by itself.
void check_together(const Options& options) {
  const auto off_device = std::ranges::find_if(options.shards, [](auto& name) { return name != "device"; });
  if (off_device != options.shards.end() && !std::ranges::count(options.stages, 3))
    throw CLI::ValidationError(
        "--offload-parameters",
        fmt::format("parameters on the {} need stage 3, where they are sharded; --stages has no 3",
                    *off_device));
  if (!options.csv.empty() && options.csv == options.json)
    throw CLI::ValidationError("--csv", fmt::format("'{}' is that of --json, too", options.csv));
}

int run(int argc, char** argv) {
  Options options;
  CLI::App app("Bytes that a rank takes, predicted and measured.", "memory_footprint");
  options.models = all_models();
  app.add_option("--models", options.models, "which, separated by commas")
      ->delimiter(',')
      ->check(CLI::IsMember(all_models()));
  app.add_option("--stages", options.stages, "ZeRO stages")->delimiter(',')->check(CLI::Range(0, 3));
  app.add_option("--ranks", options.ranks, "numbers of data-parallel ranks")
      ->delimiter(',')
      ->check(CLI::Range(1, 1 << 20));
  app.add_option("--offload-states", options.states, "where optimizer states live")
      ->delimiter(',')
      ->check(CLI::IsMember(space_names()));
  app.add_option("--offload-parameters", options.shards, "where parameter shards live, at stage 3")
      ->delimiter(',')
      ->check(CLI::IsMember(space_names()));
  app.add_option("--offload-activations", options.activations,
                 "where what units keep for backward waits: device or host")
      ->delimiter(',')
      ->check(CLI::IsMember({"device", "host"}));
  app.add_option("--states-on-device", options.states_on_device,
                 "share of the units whose states stay on the device all the same")
      ->check(CLI::Range(0.0, 1.0));
  app.add_option("--offload-directory", options.directory, "of the file on disk, where that is measured");
  app.add_option("--parameters", options.parameters, "their type")->check(CLI::IsMember({"bf16", "fp32"}));
  app.add_option("--moments", options.moments, "the optimizer's, their type")
      ->check(CLI::IsMember({"bf16", "fp32"}));
  add_choice<Recompute>(app, "--recompute", options.recompute,
                        {Recompute::none, Recompute::selective, Recompute::full},
                        "which activations are made again before backward");
  add_choice<UpdateWhen>(app, "--update", options.update,
                         {UpdateWhen::decided, UpdateWhen::reduced, UpdateWhen::next},
                         "when states are updated; next is of what the host updates");
  app.add_option("--sequences", options.sequences, "of a microbatch on a rank")->check(CLI::PositiveNumber);
  app.add_option("--length", options.length, "tokens of a sequence; at most the model's context")
      ->check(CLI::PositiveNumber);
  app.add_option("--microbatches", options.microbatches, "of a step")->check(CLI::PositiveNumber);
  app.add_option("--measure", options.measure_gib, "train what all ranks together hold in so many GiB")
      ->check(CLI::NonNegativeNumber);
  app.add_flag("--check", options.check, "fail unless each row is measured within 3% and 24 MiB of the plan");
  CLI::Option* formula =
      app.add_flag("--formula", options.formula, "print the formula's model states instead");
  app.add_option("--csv", options.csv, "write the rows to this file");
  app.add_option("--json", options.json, "write the rows to this file");
  for (CLI::Option* option : app.get_options())
    if (option != formula && option != app.get_help_ptr()) formula->excludes(option);
  app.failure_message([](const CLI::App* failed, const CLI::Error& error) {
    return "memory_footprint: " + CLI::FailureMessage::simple(failed, error);
  });
  try {
    app.parse(argc, argv);
    check_together(options);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  if (options.formula) {
    print_formula();
    return 0;
  }
  Communicator world = launched_by_mpi() ? make_mpi_world() : Communicator();
  const bool first = !world || world.rank() == 0;
  OutputFile csv(first ? options.csv : ""), json(first ? options.json : "");
  const std::vector<Row> rows = rows_of(world, options);
  if (!first) return 0;
  print_table(rows);
  write_csv(csv.stream(), rows);
  write_json(json.stream(), rows);
  csv.commit();
  json.commit();
  return options.check && !as_planned(rows) ? 1 : 0;
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) {
  try {
    return tessera::run(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "memory_footprint: %s\n", error.what());
    return 1;
  }
}
