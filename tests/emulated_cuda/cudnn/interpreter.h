// Computes a graph: every operation over every element in float64, rounded to the type of the tensor that it
// makes. Knows nothing of attention.
#pragma once

#include <cstddef>
#include <map>

#include "tests/emulated_cuda/cudnn/graph.h"

namespace tessera::emulated_cudnn {

// What a variant pack binds to a graph's tensors, by uid.
struct Bindings {
  std::map<std::int64_t, std::byte*> memory;  // of those in memory
  std::map<std::int64_t, double> values;      // of those by value
};

// Whether interpret() knows all operations.
bool is_known(const Graph& graph);

// First fills what the graph makes with NaN: an output that shares memory with an input spoils it. `factor`
// multiplies what is written, which a test can see.
void interpret(const Graph& graph, const Bindings& bindings, double factor = 1);

// The element at an address of the host.
double load_value(cudnnDataType_t type, const void* address);

}  // namespace tessera::emulated_cudnn
