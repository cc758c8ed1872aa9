// Whether a checkpoint is one that a run could have written, or may continue from.
#pragma once

#include <string>
#include <vector>

#include "src/checkpoint/header.h"
#include "tessera/engine.h"

namespace tessera::checkpoint {

// What `engine` is, without state, counters, ranks and buffers.
Header describe(const Engine& engine);

// UsageError naming the first thing that differs between what is stored and what the engine is, of the
// optimizer, the units and their parameters.
void check_same(const Header& stored, const Header& engine, const std::string& file);
// UsageError unless it was stored with this layout of these units.
void check_layout(const Header& stored, const std::vector<StoredUnit>& units, const Layout& layout,
                  const std::string& file);

}  // namespace tessera::checkpoint
