// Whether the plans of all ranks keep within their budgets, which each rank has for itself.
#pragma once

#include <functional>
#include <string>

#include "tessera/communicator.h"

namespace tessera {

// Collective, of ranks whose engines are equal. Where one does not fit, the first of these searches for what
// would, and no other: `explain` may take long. UsageError on all ranks with what it says.
void check_budgets(Communicator& ranks, bool fits, const std::function<std::string()>& explain);

}  // namespace tessera
