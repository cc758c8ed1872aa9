// What remains of a unit's values and parts where nobody wants some of the gradients that they make.
#pragma once

#include <vector>

#include "tessera/activations.h"

namespace tessera::nn {

struct LiveGraph {
  // The graph without the parts of backward that lead to no wanted gradient. What only these read is not kept
  // from forward to backward. A unit of which nothing is left has one part of backward, which does nothing.
  UnitGraph graph;
  std::vector<int> parts =
      {};  // by part of this graph: which one of the whole graph it is; −1: it does nothing
  double dropped_flops = 0;   // of the parts that are gone
  bool has_backward = false;  // whether any part of backward is left
};

// `trained`: by parameter, whether its gradient is wanted. `input_gradient`: whether that of the unit's input
// is. `makes_losses`: the last unit's parts that read the batch stay.
LiveGraph live_graph(const UnitGraph& whole, const std::vector<bool>& trained, bool input_gradient,
                     bool makes_losses);

}  // namespace tessera::nn
