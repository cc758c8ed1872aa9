// fault_program HOW RANKS_PER_HOST: ranks (see ProcessOptions) that communicate until rank 1 throws, exits,
// vanishes, is killed or stalls. Every other rank ends with status 1 and says why.
#include "tests/comm/faults.h"

int main(int count, char** arguments) {
  const std::string how = count > 1 ? arguments[1] : "";
  tessera::ControlOptions control = tessera::control_options_from_environment();
  control.deadline = std::chrono::seconds(2);
  tessera::testing::run_to_fault(
      tessera::make_process_world(tessera::make_control_world(control),
                                  {.ranks_per_host = count > 2 ? std::atoi(arguments[2]) : 0}),
      how);
  return 0;
}
