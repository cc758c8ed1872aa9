// Where the pieces of values cut buffers (ValueSpec::piece_of).
#pragma once

#include <cstdint>
#include <vector>

#include "tessera/id_vector.h"
#include "tessera/program.h"

namespace tessera {

// By buffer: the offsets at which some instruction's piece begins or ends, ascending, without 0 and the
// buffer's end. Between two of them every instruction touches all bytes or none.
IdVector<std::vector<std::int64_t>> piece_cuts(const Program& program);

}  // namespace tessera
