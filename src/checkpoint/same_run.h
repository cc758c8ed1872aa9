// Checks whether a checkpoint belongs to an engine with the same units and optimizer.
#pragma once

#include <string>
#include <vector>

#include "src/checkpoint/header.h"
#include "tessera/engine.h"

namespace tessera::checkpoint {

// Describes `engine` as a header, without state, counters, ranks and buffers.
Header describe(const Engine& engine);

// Throws UsageError naming the first difference between the stored and the engine's optimizer, units and
// parameters.
void check_same(const Header& stored, const Header& engine, const std::string& file);
// The same, of names, shapes and ties of parameters alone.
void check_same_parameters(const Header& stored, const Header& engine, const std::string& file);
// Throws UsageError unless the header was stored with this layout of these units.
void check_layout(const Header& stored, const std::vector<StoredUnit>& units, const Layout& layout,
                  const std::string& file);

}  // namespace tessera::checkpoint
