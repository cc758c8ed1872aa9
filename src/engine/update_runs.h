// Which elements an update changes, and by what its moments are rounded. Internal.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "optim/update.h"
#include "src/engine/operand_places.h"
#include "tessera/layout.h"
#include "tessera/program.h"

namespace tessera {

// What an update changes of its flat on this rank: runs of one optimizer group each, padding in between
// included, whose zeros any optimizer leaves zero.
struct UpdateRuns {
  InstructionId update = -1;    // −1: the program has none
  std::int64_t begin = 0;       // elements from the start of the flat
  std::int64_t numel = 0;       // of all runs
  std::vector<UpdateRun> runs;  // one after the other
};

// What the program updates, by flat. Moments of that type are rounded by blocks where the flat's unit has
// some.
IdVector<UpdateRuns> updates_of(const Program& program, const Layout& layout, const OperandPlaces& places,
                                int tensor_rank, DType moments);

// The key by which a flat's moments are rounded. Tensor ranks must round alike what they have copies of. What
// is cut, each of them rounds by a key of its own.
std::uint64_t rounding_key(const std::string& unit, const Flat& flat, int tensor_rank);

}  // namespace tessera
