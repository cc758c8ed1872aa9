// `tessera launch`: reads what to launch and where. The command stands behind `--`.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <chrono>
#include <cmath>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "src/cli/commands.h"
#include "src/cli/options.h"
#include "tessera/error.h"
#include "tessera/launcher.h"

namespace tessera::cli {

namespace {

const CLI::Validator kSeconds = number_that<double>(
    [](double seconds) { return std::isfinite(seconds) && seconds >= 0.1 && seconds <= 1e6; },
    "no time; give seconds from 0.1 to 1000000", "SECONDS");
const CLI::Validator kGrace = number_that<double>(
    [](double seconds) { return std::isfinite(seconds) && seconds >= 0 && seconds <= 1e6; },
    "no time; give seconds from 0 to 1000000", "SECONDS");
const CLI::Validator kHosts =
    number_that<int>([](int hosts) { return hosts > 0; },
                     "no number of hosts; give an integer of at least 1, the same on all", "HOSTS");
const CLI::Validator kHost =
    number_that<int>([](int host) { return host >= 0; }, "no host; give its number, from 0", "HOST");

struct LaunchArguments {
  ProcessLaunch launch;
  std::string at;  // ADDRESS:PORT
  double heartbeat = 2, grace = 5, start = 60;
};

std::chrono::milliseconds milliseconds_of(double seconds) {
  return std::chrono::milliseconds(std::llround(seconds * 1000));
}

// "[::1]:29400" names an address of IPv6.
void split_place(const std::string& at, ProcessLaunch& launch) {
  const std::size_t colon = at.rfind(':');
  const std::string_view port = colon == std::string::npos ? "" : std::string_view(at).substr(colon + 1);
  const auto [rest, error] = std::from_chars(port.data(), port.data() + port.size(), launch.port);
  launch.address = at.substr(0, std::min(colon, at.size()));
  const bool in_brackets = launch.address.starts_with('[') && launch.address.ends_with(']');
  if (in_brackets) launch.address = launch.address.substr(1, launch.address.size() - 2);
  const bool one_colon = in_brackets || launch.address.find(':') == std::string::npos;
  if (error != std::errc() || rest != port.data() + port.size() || launch.port < 1 || launch.port > 65'535 ||
      launch.address.empty() || !one_colon)
    throw CLI::ValidationError(
        "--at", fmt::format("'{}' is no ADDRESS:PORT; give the address of host 0, and a port from 1 to 65535 "
                            "that is free there",
                            at));
}

// What CLI11 left: words in front of `--`.
void refuse_rest(const std::vector<std::string>& rest) {
  if (rest.empty()) return;
  if (rest.front().starts_with('-'))
    throw CLI::ValidationError(fmt::format("there is no option '{}'", rest.front()));
  throw CLI::ValidationError(
      fmt::format("'{}' stands where an option is expected; the command stands behind --", rest.front()));
}

void check_hosts(const CLI::App& command, const LaunchArguments& arguments) {
  const ProcessLaunch& launch = arguments.launch;
  const auto is_given = [&](const char* option) { return command.count(option) > 0; };
  for (const char* option : {"--host", "--at", "--start", "--id"}) {
    if (is_given(option) && !is_given("--hosts"))
      throw CLI::ValidationError(option, "it is of a launch on several hosts; give --hosts, too");
  }
  if (launch.hosts == 1) {
    if (launch.host != 0)
      throw CLI::ValidationError("--host",
                                 fmt::format("there is no host {} of --hosts 1, but 0", launch.host));
    return;
  }
  for (const char* option : {"--host", "--at"})
    if (!is_given(option))
      throw CLI::ValidationError(
          "--hosts", fmt::format("{} hosts need --host, each its number from 0, and --at ADDRESS:PORT, where "
                                 "host 0 is reached; {} is missing",
                                 launch.hosts, option));
  if (launch.host >= launch.hosts)
    throw CLI::ValidationError(
        "--host", fmt::format("there is no host {} of --hosts {}; they are numbered from 0 to {}",
                              launch.host, launch.hosts, launch.hosts - 1));
}

int run(const CLI::App& command, LaunchArguments& arguments) {
  ProcessLaunch& launch = arguments.launch;
  refuse_rest(command.remaining());
  check_hosts(command, arguments);
  if (!arguments.at.empty()) split_place(arguments.at, launch);
  if (launch.command.empty())
    throw CLI::ValidationError(
        fmt::format("no command stands behind --, as in: tessera launch -n {} -- tessera "
                    "train CONFIG",
                    launch.ranks));
  launch.heartbeat = milliseconds_of(arguments.heartbeat);
  launch.grace = milliseconds_of(arguments.grace);
  launch.start = milliseconds_of(arguments.start);
  return launch_processes(launch);
}

}  // namespace

std::vector<std::string> take_launched_command(int& argc, char** argv) {
  const auto is = [](const char* word, const char* name) { return std::strcmp(word, name) == 0; };
  if (argc < 2 || !is(argv[1], "launch")) return {};
  char** const end = argv + argc;
  char** const mark = std::find_if(argv, end, [&](const char* word) { return is(word, "--"); });
  if (mark == end) return {};
  argc = static_cast<int>(mark - argv);
  return {mark + 1, end};
}

void add_launch_command(CLI::App& app, const std::vector<std::string>& behind, int& status) {
  const auto arguments = std::make_shared<LaunchArguments>();
  arguments->launch.command = behind;
  ProcessLaunch& launch = arguments->launch;
  CLI::App* command = app.add_subcommand(
      "launch",
      "Start a command as N ranks and watch them: tessera launch -n N -- COMMAND... (docs/launching.md)");
  command->allow_extras();  // told in words of its own
  command->option_defaults()->always_capture_default();
  command->add_option("-n", launch.ranks, "how many ranks this host runs, each a process")
      ->default_str("")
      ->required()
      ->check(kRanks);
  command
      ->add_option("--output", launch.output,
                   "a folder: each rank R writes to rank-R.log in it; what rank 0 writes is shown as well")
      ->check(kOutput);
  command
      ->add_option("--heartbeat", arguments->heartbeat,
                   "a rank that is stopped for so long is lost, and a host that is silent for so long")
      ->check(kSeconds);
  command
      ->add_option("--grace", arguments->grace,
                   "when a rank is lost, the others have so long to end after SIGTERM")
      ->check(kGrace);
  command->add_option("--hosts", launch.hosts, "how many hosts there are; the same call on each")
      ->check(kHosts);
  command->add_option("--host", launch.host, "the number of this host, from 0; host 0 leads")->check(kHost);
  command->add_option("--at", arguments->at,
                      "ADDRESS:PORT of host 0: its address as the others reach it, and a port that is free "
                      "there");
  command->add_option("--start", arguments->start, "within this time all hosts are to be there")
      ->check(kSeconds);
  command->add_option("--id", launch.id, "a name of this launch; a host that gives another one is refused");
  command->callback([arguments, command, &status] { status = run(*command, *arguments); });
}

}  // namespace tessera::cli
