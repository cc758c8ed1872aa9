// What the C API's handles are.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tessera/arrays.h"
#include "tessera/c_api.h"
#include "tessera/engine.h"

struct tessera_world {
  tessera::Communicator communicator;
  bool created = true;  // by a call in C, which destroys it; otherwise it is a rank_main's own

  // Each is known to the thread that made it, for tessera_must.
  tessera_world(tessera::Communicator of, bool by_call);
  ~tessera_world();
  tessera_world(const tessera_world&) = delete;
  tessera_world& operator=(const tessera_world&) = delete;
};

struct tessera_lease {
  const tessera::Engine* engine;
  std::optional<tessera::UnitLease> lease = {};  // none: ended, free for the next use
};

// An engine of units, or one of arrays.
struct tessera_engine {
  explicit tessera_engine(std::unique_ptr<tessera::Engine> of) : alone(std::move(of)), engine(*alone) {}
  explicit tessera_engine(std::unique_ptr<tessera::ArrayEngine> of)
      : arrays(std::move(of)), engine(arrays->engine()) {}

  // Ends the use that tessera_enter began, before a verb that would find it open.
  void leave() {
    if (arrays) arrays->leave();
  }

  std::unique_ptr<tessera::Engine> alone;
  std::unique_ptr<tessera::ArrayEngine> arrays;
  tessera::Engine& engine;  // the one that is there
  bool trains = false;      // the step that began last
  std::string first_nonfinite = {};
  std::vector<double> parameter_norms = {};
  std::string notes = {};
  std::vector<tessera_scheduled_use> uses = {};             // of the running step, once asked for
  std::vector<std::unique_ptr<tessera_lease>> leases = {};  // as many as were open at once; go before engine
};
