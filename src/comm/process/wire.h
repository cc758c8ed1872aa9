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
  void tell_ended() override {}  // that `host` is let go says so
  void listen(SharedWorld& world) override;

 private:
  const Communicator host_;
};

}  // namespace tessera::comm
