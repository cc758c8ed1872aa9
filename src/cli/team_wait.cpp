#include "src/cli/team_wait.h"

#include <sys/auxv.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <system_error>

namespace tessera::cli {

namespace {
constexpr const char* kLooks = "2000";  // of 10 to 50 ns each, by processor
}  // namespace

void wait_for_teams_briefly(char** argv) {
  if (std::getenv("OMP_WAIT_POLICY") != nullptr || std::getenv("GOMP_SPINCOUNT") != nullptr) return;
  if (::getauxval(AT_BASE) == 0) return;  // begun by the dynamic linker by hand: that is /proc/self/exe then
  std::error_code unknown;
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe", unknown);
  if (unknown) return;
  ::setenv("GOMP_SPINCOUNT", kLooks, 1);
  ::execv(program.c_str(), argv);  // returns only where it failed
}

}  // namespace tessera::cli
