// What ranks on different hosts tell each other, and send each other, by MPI: one communicator of a world's
// own, whose tags this deals out.
#pragma once

#include <mpi.h>

#include <memory>
#include <string>
#include <vector>

#include "src/comm/staged/tags.h"

namespace tessera::comm {

// What MPI says of a `call` that returned `status`.
std::string mpi_error(int status, const char* call);
// EnvironmentError naming `call` unless it succeeded.
void check_mpi(int status, const char* call);

class MpiWire final : public Wire, public Transport {
 public:
  // `others` are the ranks on other hosts. `messages` is this world's own, and never given back.
  MpiWire(MPI_Comm messages, std::vector<int> others);

  // Transport; there are as many tags as this MPI gives.
  std::unique_ptr<Transfers> transfers(int slots) override;
  std::uint64_t take_tags(const GroupKey& key, const std::string& name,
                          const std::vector<int>& ranks) override {
    return tags_->take(key, name, ranks);
  }
  void give_back_tags(const GroupKey& key) override { tags_->give_back(key); }

  // Wire; returns when it is on its way, or after a moment.
  void tell_failure(const SharedFailure& failure) override;
  void tell_ended(bool failed) override;
  void listen(SharedWorld& world) override;

 private:
  const MPI_Comm messages_;
  const std::vector<int> others_;
  std::unique_ptr<GroupTags> tags_;
};

}  // namespace tessera::comm
