#include "src/comm/process/wire.h"

#include <optional>
#include <thread>
#include <vector>

#include "src/comm/backend.h"

namespace tessera::comm {

void HostWire::tell_failure(const SharedFailure& failure) {
  host_.backend()->fail(failure.culprit, failure.message.data());
}

void HostWire::tell_ended(bool failed) {
  constexpr std::chrono::milliseconds kMoment{500}, kBetweenLooks{1};
  for (device::Patience patience(kMoment); failed && !host_.backend()->failure() && !patience.over();)
    std::this_thread::sleep_for(kBetweenLooks);
}

void HostWire::listen(SharedWorld& world) {
  Backend& host = *host_.backend();
  const std::vector<int> ended = host.ended();
  // Asked for behind that, and noted before it: who fails says so before it ends.
  if (const std::optional<Failure> failure = host.failure())
    world.fail(failure->reporter, failure->culprit, failure->message);
  for (const int rank : ended) world.end(rank);
}

}  // namespace tessera::comm
