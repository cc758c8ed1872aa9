#include "src/comm/blame.h"
#include "src/device/time_text.h"

#include <fmt/format.h>

#include <algorithm>

namespace tessera::comm {

Blame blame_for(const Absence& of) {
  if (of.absent.empty()) return {-1, of.call + ": the deadline passed"};
  const auto gone = std::ranges::find_if(of.absent, of.ended);
  if (gone != of.absent.end()) return {*gone, fmt::format("{}: rank {} has ended", of.call, *gone)};
  const int first = of.absent.front();
  const std::string others = of.absent.size() > 1 ? fmt::format(" and {} others", of.absent.size() - 1) : "";
  const std::string what = fmt::format("{}: no answer from rank {}{} within {}", of.call, first, others,
                                       device::time_text(of.deadline));
  if (of.state(first) == RankState::waiting)
    for (int rank = 0; rank < of.ranks; ++rank)
      if (rank != of.reporter && !of.ended(rank) && of.state(rank) == RankState::working)
        return {
            rank,
            fmt::format(
                "{}, which waits for peers itself; rank {} computes, waits outside of a step, or is stopped",
                what, rank)};
  return {first, fmt::format("{} (rank {} {})", what, first, of.status(0))};
}

}  // namespace tessera::comm
