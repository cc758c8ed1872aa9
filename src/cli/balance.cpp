#include "src/cli/balance.h"

#include <algorithm>

#include "tessera/id_vector.h"

namespace tessera::cli {

Balance balance_of(Communicator& world, const StepTiming& timing) {
  const double busy = std::max(0.0, timing.total_us - timing.exposed_us) * 1e-6;
  IdVector<double> all(world.world());
  world.all_gather(&busy, all.data(), sizeof busy, {.operation = "balance of ranks"});
  const auto [least, most] = std::ranges::minmax_element(all);
  // minmax_element() takes the last of several that are largest.
  const auto first_most = std::ranges::find(all, *most);
  return {.least_seconds = *least,
          .most_seconds = *most,
          .fastest = static_cast<int>(least - all.begin()),
          .slowest = static_cast<int>(first_most - all.begin())};
}

std::optional<int> LagWatch::lagging(const Balance& balance) {
  const bool lags = balance.most_seconds >= kRatio * balance.least_seconds && balance.most_seconds > 0;
  times_ = !lags ? 0 : balance.slowest == rank_ ? times_ + 1 : 1;
  rank_ = balance.slowest;
  if (told_ || times_ < kInARow) return std::nullopt;
  told_ = true;
  return rank_;
}

}  // namespace tessera::cli
