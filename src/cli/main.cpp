// The tool: reads the command line, runs a command, turns what it throws into one line and an exit status.
#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <exception>
#include <functional>
#include <new>

#include "src/cli/commands.h"
#include "src/cli/config.h"
#include "src/cli/config_keys.h"
#include "src/cli/evaluate/evaluate_command.h"
#include "src/cli/files.h"
#include "src/cli/generate/generate_command.h"
#include "src/cli/options.h"
#include "src/cli/output.h"
#include "src/cli/places.h"
#include "src/cli/processes.h"
#include "src/cli/report.h"
#include "src/cli/signals.h"
#include "src/cli/team_wait.h"
#include "tessera/cluster.h"

namespace tessera::cli {
namespace {

constexpr int kFailed = 1;
constexpr int kUsage = 2;

const CLI::Validator kPositive = number_that<double>(
    [](double value) { return std::isfinite(value) && value > 0.0; }, "no number above 0", "POSITIVE");
const CLI::Validator kNotNegative =
    number_that<double>([](double value) { return std::isfinite(value) && value >= 0.0; },
                        "no number of at least 0", "NONNEGATIVE");
// A file that is opened must not take the place of a standard stream that was closed: what is printed would
// land in it.
void fill_standard_streams() {
  for (const int stream : {0, 1, 2})
    if (::fcntl(stream, F_GETFD) < 0 && errno == EBADF)
      ::open("/dev/null", stream == 0 ? O_RDONLY : O_WRONLY);
}

[[noreturn]] void refuse_output() {
  throw EnvironmentError(
      fmt::format("cannot write to the standard output: {}", std::strerror(errno == 0 ? EIO : errno)));
}

// What was printed has to have arrived.
void check_flushed() {
  errno = 0;
  if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) refuse_output();
}

void add_config_options(CLI::App& command, RunArguments& arguments) {
  command.add_option("config", arguments.config, "TOML file (docs/configuration.md)")->required();
  add_overrides(command, arguments.settings, arguments.ranks);
}

CLI::Option* add_output(CLI::App& command, const char* name, std::string& path, const char* help) {
  return command.add_option(name, path, help)->check(kOutput);
}

void add_json(CLI::App& command, std::string& path) {
  add_output(command, "--json", path, "write the result to this file as JSON");
}

void add_cluster_options(CLI::App& command, ClusterArguments& cluster) {
  command.option_defaults()->always_capture_default();
  std::vector<std::string> algorithms;
  for (const std::string_view name : collective_algorithm_names()) algorithms.emplace_back(name);
  command.add_option("--gflops", cluster.gflops, "10^9 operations a second that modules reach")
      ->check(kPositive);
  command
      .add_option(
          "--peak-gflops", cluster.peak_gflops,
          "10^9 operations a second that utilisation is measured against; by default run.peak_tflops, "
          "or else as --gflops")
      ->default_str("")
      ->check(kPositive);
  command
      .add_option("--memory", cluster.memory_gigabytes,
                  "GB a second of memory, read plus written, by updates, casts and sums")
      ->check(kPositive);
  command
      .add_option("--host-memory", cluster.host_memory_gigabytes,
                  "the same of the host's memory, where the host updates what is off the device")
      ->check(kPositive);
  command
      .add_option("--host-link", cluster.host_link_gigabytes,
                  "GB a second between device and host, each way, of what is off the device")
      ->check(kPositive);
  command.add_option("--disk", cluster.disk_gigabytes, "GB a second that a rank reads or writes on its disk")
      ->check(kPositive);
  CLI::Option* nodes =
      command.add_option("--ranks-per-node", cluster.ranks_per_node, "ranks on a node; all by default")
          ->default_str("")
          ->check(kPositive);
  // Two names for one value, so that what is wrong is told by the one that was given.
  const auto add_inner = [&](const char* name, const char* brief, double& value, const char* help,
                             const CLI::Validator& right) {
    CLI::Option* inner = command.add_option(name, value, help)->check(right);
    command.add_option(brief, value, fmt::format("another name for {}", name))->check(right)->excludes(inner);
  };
  add_inner("--inner-link", "--link", cluster.inner_link_gigabytes,
            "GB a second into a rank from another of its node", kPositive);
  add_inner("--inner-latency", "--latency", cluster.inner_latency_us,
            "microseconds of a message inside a node", kNotNegative);
  command
      .add_option("--outer-link", cluster.outer_link_gigabytes, "GB a second into a rank from another node")
      ->check(kPositive)
      ->needs(nodes);
  command.add_option("--outer-latency", cluster.outer_latency_us, "microseconds of a message between nodes")
      ->check(kNotNegative)
      ->needs(nodes);
  command.add_option("--collectives", cluster.collectives, "how collectives move their bytes")
      ->check(CLI::IsMember(algorithms));
  add_output(command, "--trace", cluster.trace,
             "write the timeline of all pipeline ranks to this file (Chrome trace)");
}

void check_cluster_options(const ClusterArguments& cluster) {
  if (cluster.peak_gflops > 0 && cluster.peak_gflops < cluster.gflops)
    throw CLI::ValidationError(
        "--peak-gflops", fmt::format("{:g} is below --gflops, {:g}: no module exceeds its device's peak",
                                     cluster.peak_gflops, cluster.gflops));
}

// The command that was given last: of `tessera checkpoint inspect`, the latter.
const CLI::App& innermost(const CLI::App& app) {
  const std::vector<CLI::App*> given = app.get_subcommands();
  return given.empty() ? app : innermost(*given.front());
}

std::string full_name(const CLI::App& command) {
  return (command.get_parent() ? full_name(*command.get_parent()) + " " : "") + command.get_name();
}

// "there is no command 'trian'; did you mean 'train'?"
std::string unknown_command(const CLI::App& command, const std::string& word) {
  std::vector<std::string> names;
  for (const CLI::App* known : command.get_subcommands([](const CLI::App*) { return true; }))
    names.push_back(known->get_name());
  const std::string near = closest(word, names);
  return fmt::format("there is no command '{}'; {}", word,
                     near.empty() ? fmt::format("the commands are {}", fmt::join(names, ", "))
                                  : fmt::format("did you mean '{}'?", near));
}

// What is wrong with the command line, in one line.
std::string wrong_usage(const CLI::App& app, const CLI::ParseError& error) {
  const CLI::App& command = innermost(app);
  const std::string help = fmt::format("; see {} --help", full_name(command));
  const std::vector<std::string> rest = app.remaining(true);
  const std::string what = error.what();
  if (dynamic_cast<const CLI::RequiredError*>(&error) != nullptr) {
    const bool of_commands = command.get_require_subcommand_min() > 0;
    if (of_commands && !rest.empty() && !rest.front().starts_with('-'))
      return unknown_command(command, rest.front()) + help;
    if (of_commands && !rest.empty()) return fmt::format("there is no option '{}'", rest.front()) + help;
    if (of_commands) return "a command is missing" + help;
    return fmt::format("{} needs {}{}", full_name(command), what.substr(0, what.find(' ')), help);
  }
  if (what.find("At Most 1 required") != std::string::npos)
    return what.substr(0, what.find(':')) + " is given more than once; give it once" + help;
  return what + help;
}

// What the command line gives to the commands, and how the one that it names ended.
struct CommandLine {
  RunArguments arguments;
  ClusterArguments cluster;
  PlanArguments show;
  CompareArguments compare;
  EvaluateArguments evaluate;
  GenerateArguments generate;
  std::string json, checkpoint, output;
  bool speaks = true;  // else another process says and writes what both find
  bool merge = false;  // adapters into the weights
  int status = 0;
};

// In one line.
const char* told(const std::exception& error) {
  if (dynamic_cast<const std::bad_alloc*>(&error) != nullptr)
    return "out of memory: the system gives this process no more";
  return error.what();
}

// Runs what ends with a result, or with the reason why there is none. Where a path was refused that may be
// the result's.
void run_for_result(CommandLine& line, const std::function<int(ResultFile&)>& command) {
  ResultFile result(line.json, line.speaks);
  try {
    line.status = command(result);
  } catch (const RefusedOutput&) {
    throw;
  } catch (const std::exception& error) {
    result.fail(told(error));
    throw;
  }
}

// For a command that needs no ranks, and finds the same on every host: of the processes that mpirun started
// the first alone says and writes it.
void leave_to_first_process(CommandLine& line) {
  line.speaks = !left_to_first_process();
  if (line.speaks) return;
  line.show.html = line.show.program = line.cluster.trace = "";
  if (std::freopen("/dev/null", "w", stdout) == nullptr) refuse_output();
}

void add_train(CLI::App& app, CommandLine& line) {
  CLI::App* command = app.add_subcommand("train", "Train a model");
  add_config_options(*command, line.arguments);
  add_json(*command, line.json);
  command->callback([&line] {
    line.speaks = is_first_process();
    run_for_result(line, [&](ResultFile& result) { return train_command(line.arguments, result); });
  });
}

void add_evaluate(CLI::App& app, CommandLine& line) {
  CLI::App* command =
      app.add_subcommand("evaluate", "Measure a model on text, or on multiple-choice questions");
  add_evaluate_options(*command, line.evaluate);
  add_json(*command, line.json);
  command->callback([&line] {
    line.speaks = is_first_process();
    run_for_result(line, [&](ResultFile& result) { return evaluate_command(line.evaluate, result); });
  });
}

void add_generate(CLI::App& app, CommandLine& line) {
  CLI::App* command =
      app.add_subcommand("generate", "Continue a prompt; the text goes to the standard output");
  add_generate_options(*command, line.generate);
  add_json(*command, line.json);
  command->callback([&line] {
    line.speaks = is_first_process();
    run_for_result(line, [&](ResultFile& result) { return generate_command(line.generate, result); });
  });
}

void add_plan(CLI::App& app, CommandLine& line) {
  CLI::App* command = app.add_subcommand("plan", "Show what each rank will hold, in bytes; needs no device");
  add_config_options(*command, line.arguments);
  add_json(*command, line.json);
  command->add_flag("--why", line.show.why,
                    "list the ten largest buffers alive at the peak, and when they live");
  add_output(*command, "--html", line.show.html, "write a page that shows memory over the step to this file");
  add_output(*command, "--program", line.show.program,
             "write all programs, of every pipeline rank, to this file as text (docs/architecture.md)");
  command->callback([&line] {
    leave_to_first_process(line);
    run_for_result(line, [&](ResultFile& result) { return plan_command(line.arguments, line.show, result); });
  });
}

void add_simulate(CLI::App& app, CommandLine& line) {
  CLI::App* command =
      app.add_subcommand("simulate", "Predict the time of a step on a cluster; needs no device");
  add_config_options(*command, line.arguments);
  add_json(*command, line.json);
  add_cluster_options(*command, line.cluster);
  command->callback([&line] {
    check_cluster_options(line.cluster);
    leave_to_first_process(line);
    run_for_result(
        line, [&](ResultFile& result) { return simulate_command(line.arguments, line.cluster, result); });
  });
}

void add_compare(CLI::App& app, CommandLine& line) {
  CLI::App* command = app.add_subcommand("compare",
                                         "Say whether two runs compute the same bits; needs no device. "
                                         "Status 0: they do, on equal terms that it "
                                         "names; 3: they do not");
  CompareArguments& two = line.compare;
  command->add_option("a", two.a.config, "TOML file of a run (docs/configuration.md)")->required();
  command->add_option("b", two.b.config, "TOML file of the other run")->required();
  add_settings(*command, "--set",
               "section.key=value in both runs; may be repeated, of one key the last counts",
               line.arguments.settings);
  add_settings(*command, "--set-a", "the same in the first run only, behind those of both", two.a.settings);
  add_settings(*command, "--set-b", "the same in the other run only, behind those of both", two.b.settings);
  add_json(*command, line.json);
  command->callback([&line] {
    leave_to_first_process(line);
    for (RunArguments* run : {&line.compare.a, &line.compare.b})
      run->settings.insert(run->settings.begin(), line.arguments.settings.begin(),
                           line.arguments.settings.end());
    run_for_result(line, [&](ResultFile& result) { return compare_command(line.compare, result); });
  });
}

void add_info(CLI::App& app, CommandLine& line) {
  CLI::App* command = app.add_subcommand("info", "Show what this build and machine have");
  add_json(*command, line.json);
  command->callback([&line] { run_for_result(line, info_command); });
}

void add_checkpoint_argument(CLI::App& command, CommandLine& line) {
  command.add_option("folder", line.checkpoint, "a checkpoint, or the folder of all: the newest")->required();
}

void add_inspect(CLI::App& checkpoint, CommandLine& line, const char* name, const char* help, bool verify) {
  CLI::App* command = checkpoint.add_subcommand(name, help);
  add_checkpoint_argument(*command, line);
  add_json(*command, line.json);
  command->callback([&line, verify] {
    leave_to_first_process(line);
    run_for_result(line,
                   [&](ResultFile& result) { return inspect_command(line.checkpoint, verify, result); });
  });
}

void add_checkpoint(CLI::App& app, CommandLine& line) {
  CLI::App* checkpoint = app.add_subcommand("checkpoint", "Look at checkpoints, or export one");
  checkpoint->require_subcommand(1);
  add_inspect(*checkpoint, line, "inspect", "Show what a checkpoint says of itself", false);
  add_inspect(*checkpoint, line, "verify", "The same; refuse missing or foreign files and damaged buffers",
              true);
  CLI::App* exporting = checkpoint->add_subcommand("export", "Write the weights as safetensors");
  add_config_options(*exporting, line.arguments);
  add_checkpoint_argument(*exporting, line);
  add_output(*exporting, "output", line.output, "a .safetensors file, or a folder: then with config.json")
      ->required();
  exporting->add_flag("--merge", line.merge,
                      "add adapters to the weights; the same as --set lora.merge=true");
  exporting->callback([&line] {
    if (line.merge) line.arguments.settings.emplace_back("lora.merge=true");
    line.status = export_command(line.arguments, line.checkpoint, line.output);
  });
}

void add_config(CLI::App& app, CommandLine& line) {
  CLI::App* command = app.add_subcommand("config", "Print the documentation of all keys (Markdown)");
  command->callback([&line] {
    leave_to_first_process(line);
    if (!write_to_standard_output(config_markdown())) refuse_output();
  });
}

int run(int argc, char** argv) {
  const std::vector<std::string> behind = take_launched_command(argc, argv);
  CLI::App app("Tessera trains models sharded over ranks.", "tessera");
  app.require_subcommand(1);
  app.set_version_flag("--version", TESSERA_VERSION);
  CommandLine line;
  for (const auto& add : {add_train, add_evaluate, add_generate, add_plan, add_simulate, add_compare,
                          add_info, add_checkpoint, add_config})
    add(app, line);
  add_tokenizer_commands(app);
  add_data_commands(app);
  add_report_command(app);
  add_launch_command(app, behind, line.status);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == static_cast<int>(CLI::ExitCodes::Success)) return app.exit(error);
    std::fprintf(stderr, "tessera: %s\n", wrong_usage(app, error).c_str());
    return kUsage;
  }
  return line.status;
}

}  // namespace
}  // namespace tessera::cli

int main(int argc, char** argv) {
  try {
    tessera::cli::fill_standard_streams();
    const auto is = [&](const char* command) { return argc > 1 && std::strcmp(argv[1], command) == 0; };
    if (is("train") || is("evaluate") || is("generate")) tessera::cli::wait_for_teams_briefly(argv);
    if (is("train")) tessera::cli::keep_signals_off_threads();
    const int status = tessera::cli::run(argc, argv);
    tessera::cli::check_flushed();
    return status;
  } catch (const std::exception& error) {
    std::fflush(stdout);
    std::fprintf(stderr, "tessera: %s\n", tessera::cli::told(error));
    return tessera::cli::kFailed;
  }
}
