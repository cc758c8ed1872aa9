// `tessera report`: a page of what runs wrote.
#include <fmt/format.h>

#include <memory>

#include "src/cli/commands.h"
#include "src/cli/options.h"
#include "src/cli/output.h"
#include "src/cli/page/run_page.h"
#include "src/cli/processes.h"
#include "tessera/error.h"

namespace tessera::cli {

namespace {

struct ReportArguments {
  std::vector<std::string> runs;  // each named as read_runs() takes it
  std::string html, title;        // without a title, the runs' names
};

void report(const ReportArguments& arguments) {
  const std::vector<RunRecord> runs = read_runs(arguments.runs);
  std::string title = arguments.title;
  for (const RunRecord& run : runs)
    if (arguments.title.empty()) title += (title.empty() ? "" : ", ") + run.name;
  OutputFile page("--html", arguments.html);
  page.stream() << run_page(runs, title);
  page.commit();
  if (is_standard_output(arguments.html)) return;
  for (const RunRecord& run : runs)
    for (const std::string& note : run.notes) fmt::print("{}: {}\n", escaped(run.name), escaped(note));
  fmt::print("wrote {}\n", escaped(arguments.html));
}

}  // namespace

void add_report_command(CLI::App& app) {
  const auto arguments = std::make_shared<ReportArguments>();
  CLI::App* command =
      app.add_subcommand("report", "Write a page of what runs wrote: curves, memory, settings");
  command
      ->add_option(
          "run", arguments->runs,
          "a run's metrics (run.metrics) or result (--json), or a folder that has them as metrics.jsonl "
          "and result.json; several are laid over each other")
      ->required();
  command->add_option("--html", arguments->html, "write the page to this file")->required()->check(kOutput);
  command->add_option("--title", arguments->title, "the page's title; by default the runs' names");
  command->callback([arguments] {
    if (!left_to_first_process()) report(*arguments);
  });
}

}  // namespace tessera::cli
