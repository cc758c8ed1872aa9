// The page of `tessera report`: curves, memory and configurations of one run or several, in one file that
// needs nothing else.
#pragma once

#include <span>
#include <string>

#include "src/cli/page/run_record.h"

namespace tessera::cli {

// The whole HTML document. Runs are laid over each other, in this order.
std::string run_page(std::span<const RunRecord> runs, const std::string& title);

}  // namespace tessera::cli
