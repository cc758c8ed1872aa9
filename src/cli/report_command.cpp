// `tessera report`: a page of what runs wrote.
#include <fmt/format.h>

#include "src/cli/commands.h"
#include "src/cli/output.h"
#include "src/cli/page/run_page.h"
#include "tessera/error.h"

namespace tessera::cli {

int report_command(const ReportArguments& arguments) {
  const std::vector<RunRecord> runs = read_runs(arguments.runs);
  std::string title = arguments.title;
  for (const RunRecord& run : runs)
    if (arguments.title.empty()) title += (title.empty() ? "" : ", ") + run.name;
  OutputFile page("--html", arguments.html);
  page.stream() << run_page(runs, title);
  page.commit();
  for (const RunRecord& run : runs)
    for (const std::string& note : run.notes) fmt::print("{}: {}\n", escaped(run.name), escaped(note));
  if (!is_standard_output(arguments.html)) fmt::print("wrote {}\n", escaped(arguments.html));
  return 0;
}

}  // namespace tessera::cli
