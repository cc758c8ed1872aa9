#include "src/comm/process/ucx_library.h"

#include <fmt/format.h>

#include <array>
#include <csignal>

#include "src/device/shared_library.h"
#include "tessera/error.h"

namespace tessera::comm {
namespace {

// UCX sets these as it is loaded, to write a report that nobody asked for.
class KeptSignals {
 public:
  KeptSignals() {
    for (std::size_t i = 0; i < kSignals.size(); ++i) sigaction(kSignals[i], nullptr, &kept_[i]);
  }
  ~KeptSignals() {
    for (std::size_t i = 0; i < kSignals.size(); ++i) sigaction(kSignals[i], &kept_[i], nullptr);
  }
  KeptSignals(const KeptSignals&) = delete;
  KeptSignals& operator=(const KeptSignals&) = delete;

 private:
  static constexpr std::array<int, 5> kSignals = {SIGILL, SIGSEGV, SIGBUS, SIGFPE, SIGHUP};
  std::array<struct sigaction, kSignals.size()> kept_{};
};

UcxLibrary load() {
  const KeptSignals signals;
  constexpr const char* kNeeding = "messages between hosts need";
  constexpr const char* kWayOut = "install UCX (libucx0), or name its folder in LD_LIBRARY_PATH";
  void* const ucp = device::open_library(
      {.name = "libucp.so.0", .built_at = "libucp.so", .needing = kNeeding, .way_out = kWayOut});
  void* const ucs = device::open_library(
      {.name = "libucs.so.0", .built_at = "libucs.so", .needing = kNeeding, .way_out = kWayOut});
  UcxLibrary functions{};
#define TESSERA_UCX_FIND(function) \
  functions.function =             \
      reinterpret_cast<decltype(functions.function)>(device::find_function(ucp, "UCX", #function));
  TESSERA_FOR_EACH_UCX(TESSERA_UCX_FIND)
#undef TESSERA_UCX_FIND
  functions.ucs_status_string = reinterpret_cast<decltype(functions.ucs_status_string)>(
      device::find_function(ucs, "UCX", "ucs_status_string"));
  return functions;
}

}  // namespace

const UcxLibrary& ucx() {
  static const UcxLibrary functions = load();
  return functions;
}

void check_ucx(ucs_status_t status, const char* call) {
  if (status != UCS_OK) throw EnvironmentError(fmt::format("{}: {}", call, ucx().ucs_status_string(status)));
}

}  // namespace tessera::comm
