#include "src/comm/failure.h"

#include <fmt/format.h>

namespace tessera::comm {

std::string told_to(int rank, const Failure& failure) {
  if (failure.reporter == rank) return fmt::format("this rank failed before: {}", failure.message);
  if (failure.reporter == failure.culprit)
    return fmt::format("rank {} failed: {}", failure.culprit, failure.message);
  return fmt::format("rank {} reported: {}", failure.reporter, failure.message);
}

}  // namespace tessera::comm
