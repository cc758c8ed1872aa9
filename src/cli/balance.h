// How evenly the ranks are loaded: who computes longest in a step while the others wait.
#pragma once

#include <optional>

#include "tessera/communicator.h"
#include "tessera/engine.h"

namespace tessera::cli {

// How long ranks computed in one step. A rank computes while its compute lane waits for no other lane.
struct Balance {
  double least_seconds = 0.0, most_seconds = 0.0;
  int fastest = 0, slowest = 0;  // ranks; the first of equals
};

// Collective, behind a step that every rank has traced.
Balance balance_of(Communicator& world, const StepTiming& timing);

// Says once that a rank lags: in three measured steps in a row the same rank is slowest, by half or more.
class LagWatch {
 public:
  // Returns the rank when it is to be told.
  std::optional<int> lagging(const Balance& balance);

 private:
  static constexpr double kRatio = 1.5;
  static constexpr int kInARow = 3;
  int rank_ = -1, times_ = 0;
  bool told_ = false;
};

}  // namespace tessera::cli
