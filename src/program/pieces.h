// Where the pieces of values cut buffers (ValueSpec::piece_of).
#pragma once

#include <cstdint>
#include <vector>

#include "tessera/id_vector.h"
#include "tessera/program.h"

namespace tessera {

// Bytes of a buffer that every instruction touches together, or not at all.
struct Stretch {
  std::int64_t begin = 0;
  std::int64_t end = 0;
};

// By buffer: its stretches, one behind the other. Without pieces it is one.
IdVector<std::vector<Stretch>> stretches_of(const Program& program);

}  // namespace tessera
