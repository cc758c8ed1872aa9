// Configurations: TOML text, then "--set" values, each behind a zero byte. One is either refused, or printed
// and read again as the same.
#include <optional>
#include <string_view>

#include "fuzz/fuzz.h"
#include "src/cli/config.h"

using namespace tessera;

namespace {

// Nothing where it is refused as it should be.
std::optional<cli::Config> accepted(std::string_view text, const std::vector<std::string>& settings) try {
  return cli::parse_config(text, "fuzz.toml", settings);
} catch (const UsageError& error) {
  const std::string_view message = error.what();
  fuzz::require(!message.empty() && message.find('\n') == message.npos, "a message is not one line");
  return {};
}

void check_printed(const cli::Config& config) {
  const std::string printed = cli::to_toml(config);
  const cli::Config again = cli::parse_config(printed, "printed.toml");
  fuzz::require(cli::differences(config, again).empty(), "a printed configuration reads as another");
  fuzz::require(cli::to_toml(again) == printed, "a configuration is printed in two ways");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t bytes) {
  std::string_view rest(reinterpret_cast<const char*>(data), bytes);
  const std::string_view text = rest.substr(0, rest.find('\0'));
  std::vector<std::string> settings;
  for (rest.remove_prefix(text.size()); !rest.empty(); rest.remove_prefix(settings.back().size())) {
    rest.remove_prefix(1);
    settings.emplace_back(rest.substr(0, rest.find('\0')));
  }
  if (const auto config = accepted(text, settings)) check_printed(*config);
  return 0;
}
