// What ranks tell each other outside of calls, through the world that brought them together.
#pragma once

#include "src/comm/staged/transport.h"
#include "tessera/communicator.h"

namespace tessera::comm {

class HostWire final : public Wire {
 public:
  // `host` has the same ranks.
  explicit HostWire(Communicator host) : host_(std::move(host)) {}

  void tell_failure(const SharedFailure& failure) override;
  // That `host` is let go says so. Where another rank was the first to say that the world has failed, it may
  // not have told `host` yet: this waits until it has, a moment at most.
  void tell_ended(bool failed) override;
  void listen(SharedWorld& world) override;

 private:
  const Communicator host_;
};

}  // namespace tessera::comm
