// Which pipeline ranks hold a flat buffer: a tied parameter may lie on several.
#pragma once

#include <vector>

#include "tessera/layout.h"
#include "tessera/pipeline.h"

namespace tessera {

// By flat, the pipeline ranks whose units use it: that of its own unit, then the others, ascending.
IdVector<std::vector<int>> holders_of(const Layout& layout, const Partition& partition);

}  // namespace tessera
