// `tessera info`.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "src/cli/commands.h"
#include "src/cli/output.h"
#include "tessera/communicator.h"
#include "tessera/device.h"

namespace tessera::cli {

int info_command(const std::string& json) {
  OutputFile file = json.empty() ? OutputFile() : OutputFile(json);
  const Machine machine = read_machine();
  fmt::print("tessera        {} ({}, {})\n", TESSERA_VERSION, TESSERA_BUILD, TESSERA_COMPILER);
  fmt::print("devices        cpu\ncommunication  local (ranks are threads){}\n",
             mpi_available() ? ", mpi (ranks are processes)" : "");
  std::vector<std::string> communication = {"local"};
  if (mpi_available()) communication.emplace_back("mpi");
  fmt::print("processor      {}\ninstructions   {}\ncores          {}\n", machine.cpu,
             machine.instruction_set, machine.cores);
  fmt::print("memory         {} installed, {} available\n", mib(machine.memory_bytes),
             mib(machine.available_bytes));
  fmt::print("huge pages     {}\n", machine.huge_pages ? "yes" : "no");
  if (file) {
    const nlohmann::json result = {{"version", TESSERA_VERSION},
                                   {"build", TESSERA_BUILD},
                                   {"compiler", TESSERA_COMPILER},
                                   {"devices", {"cpu"}},
                                   {"communication", communication},
                                   {"processor", machine.cpu},
                                   {"instruction_set", machine.instruction_set},
                                   {"cores", machine.cores},
                                   {"memory_bytes", machine.memory_bytes},
                                   {"available_bytes", machine.available_bytes},
                                   {"huge_pages", machine.huge_pages}};
    file.stream() << result.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) << "\n";
    file.commit();
  }
  return 0;
}

}  // namespace tessera::cli
