// What a launcher in the manner of torchrun says in the environment; read in any build.
#include <fmt/format.h>

#include <charconv>
#include <cstdlib>
#include <cstring>

#include "tessera/communicator.h"
#include "tessera/mesh.h"

namespace tessera {
namespace {

int number(const char* variable, int least, int most) {
  const char* const text = std::getenv(variable);
  const std::string expected = fmt::format("a launcher sets it to a number from {} to {}", least, most);
  if (text == nullptr) throw UsageError(fmt::format("{} is not set; {}", variable, expected));
  int value = 0;
  const char* const end = text + std::strlen(text);
  const auto [rest, error] = std::from_chars(text, end, value);
  if (error != std::errc() || rest != end || value < least || value > most)
    throw UsageError(fmt::format("{} is \"{}\"; {}", variable, text, expected));
  return value;
}

// By which a process of another run is told that has come to this one's port.
std::string launch() {
  // Of a heterogeneous job each component has a number of its own.
  const bool one_job = std::getenv("SLURM_HET_SIZE") == nullptr;
  for (const char* variable : {"TESSERA_LAUNCH", "TORCHELASTIC_RUN_ID", "SLURM_JOB_ID"}) {
    const char* const text = std::getenv(variable);
    if (text != nullptr && *text != '\0' && (one_job || std::string_view(variable) != "SLURM_JOB_ID"))
      return fmt::format("{}={}", variable, text);
  }
  return {};
}

}  // namespace

bool launched_by_variables() {
  const char* const world = std::getenv("WORLD_SIZE");
  return std::getenv("RANK") != nullptr && world != nullptr && std::string_view(world) != "1";
}

void check_launchers() {
  if (!launched_by_variables()) return;
  const std::string_view world = std::getenv("WORLD_SIZE");
  for (const char* variable : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE"}) {
    const char* const other = std::getenv(variable);
    if (other != nullptr && other != world)
      throw UsageError(fmt::format(
          "{} is \"{}\", and WORLD_SIZE is \"{}\": of two launchers, one within the other, unset the "
          "outer one's, {} or RANK and WORLD_SIZE",
          variable, other, world, variable));
  }
}

ControlOptions control_options_from_environment() {
  ControlOptions options;
  options.world = number("WORLD_SIZE", 1, Mesh::kMostRanks);
  options.rank = number("RANK", 0, options.world - 1);
  options.launch = launch();
  if (options.world == 1 && std::getenv("MASTER_PORT") == nullptr) return options;
  const char* const address = std::getenv("MASTER_ADDR");
  if (address == nullptr || *address == '\0')
    throw UsageError("MASTER_ADDR is not set; a launcher sets it to the name or address of rank 0's host");
  options.address = address;
  options.port = number("MASTER_PORT", 1, 65535);
  // torchrun's own store may listen there already.
  const char* const taken = std::getenv("TORCHELASTIC_USE_AGENT_STORE");
  if (taken != nullptr && std::string_view(taken) == "True") options.port = options.port % 65535 + 1;
  return options;
}

}  // namespace tessera
