// What the stand-in offers for a graph, as cuDNN's heuristics do: engines to choose from, by numerical notes
// and by workspace. The first two are traps, which attention must not choose.
#pragma once

#include <cstdint>
#include <vector>

#include "tests/emulated_cuda/cudnn/graph.h"

namespace tessera::emulated_cudnn {

struct Engine {
  std::int64_t index = 0;
  bool deterministic = true;
  std::int64_t workspace_bytes = 0;
};

inline constexpr std::int64_t kNondeterministicEngine = 3;  // every second run gives other bits
inline constexpr std::int64_t kLargeEngine = 5;             // needs more workspace than a GPU has
inline constexpr std::int64_t kRightEngine = 7;

// In the order in which heuristics recommend them. Throws Refusal where no engine has kernels for the graph:
// operations that the interpreter does not know; matrices in memory that cuDNN's attention does not take, see
// check_matrix().
std::vector<Engine> engines_of(const Graph& graph);

// What cuDNN 9.19 was found to need on an A100 for attention's backward: virtual matrices in 16 bits that
// matmuls make, the largest of those that are transposed, its rows and columns padded to 64, and 128 bytes.
std::int64_t workspace_bytes(const Graph& graph);

}  // namespace tessera::emulated_cudnn
