// Why a world failed, as its ranks tell each other.
#pragma once

#include <string>

#include "src/device/wait.h"

namespace tessera::comm {

// `reporter` said so of `culprit`, which is the same rank, another, or -1 where not known.
struct Failure {
  int reporter = -1;
  int culprit = -1;
  std::string message;
  device::Clock::time_point time = device::Clock::now();
};

// What it says to `rank`: "rank 2 failed: the disk is full".
std::string told_to(int rank, const Failure& failure);

}  // namespace tessera::comm
