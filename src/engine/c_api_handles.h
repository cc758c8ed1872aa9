// What the C API's handles are.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tessera/c_api.h"
#include "tessera/engine.h"

struct tessera_world {
  tessera::Communicator communicator;
  bool created = true;  // by a call in C, which destroys it; otherwise it is a rank_main's own
};

struct tessera_lease {
  const tessera::Engine* engine;
  std::optional<tessera::UnitLease> lease = {};  // none: ended, free for the next use
};

struct tessera_engine {
  tessera::Engine engine;
  std::string first_nonfinite = {};
  std::vector<double> parameter_norms = {};
  std::string notes = {};
  std::vector<tessera_scheduled_use> uses = {};             // of the running step, once asked for
  std::vector<std::unique_ptr<tessera_lease>> leases = {};  // as many as were open at once; go before engine
};
