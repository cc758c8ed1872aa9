// load_config(): a configuration from a file, completed by what the files that it names give.
#include <fmt/format.h>

#include <cerrno>
#include <cstring>

#include "src/cli/config.h"
#include "src/cli/files.h"
#include "src/cli/stored_adapter.h"
#include "src/cli/stored_model.h"

namespace tessera::cli {

Config load_config(const std::filesystem::path& path, std::span<const std::string> settings,
                   std::int64_t ranks, const std::filesystem::path& run_folder) {
  const std::optional<std::string> text = read_text(path);
  if (!text)
    throw EnvironmentError(
        fmt::format("cannot read the configuration '{}': {}", path.string(), std::strerror(errno)));
  return parse_config(*text, path.filename().string(), settings, ranks, [&](Config& config) {
    const bool resumes = run_folder.empty() && config.run.resume != "false";
    const std::filesystem::path kept = resumes ? std::filesystem::path(config.run.checkpoint) : run_folder;
    complete_model(config, kept);
    complete_adapter(config, kept);
  });
}

}  // namespace tessera::cli
