// What must be equal on all ranks for the results of their engines to be, and who was given something else.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tessera/engine_options.h"
#include "tessera/layout.h"

namespace tessera {

// All of it but what follows from it, the programs: names with their values, in a fixed order. For
// compare_engines(), not for people.
std::string figures_of(const Layout& layout, const EngineOptions& options);

// Collective; `hash` is of the figures and of the programs. UsageError, the same on all ranks, that names a
// rank which was given others and the first of the figures that differs. Returns the ranks, in the world that
// `states` is made from, of its members.
std::vector<int> compare_engines(Communicator& states, const std::string& figures, std::uint64_t hash);

}  // namespace tessera
