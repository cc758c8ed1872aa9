// The C API's structs as the engine's own.
#pragma once

#include <span>
#include <vector>

#include "tessera/c_api.h"
#include "tessera/engine_options.h"

namespace tessera::c_api {

std::vector<UnitSpec> to_specs(const tessera_unit* units, std::int32_t count);
// `units` as to_specs() has taken them.
EngineOptions to_options(const tessera_options& options, std::span<const tessera_unit> units, int ranks);

}  // namespace tessera::c_api
