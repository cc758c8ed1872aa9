// What ranks on different hosts tell each other outside of calls: that one failed, or has ended. Owns the
// tags of one world's MPI communicator, which its message groups use, too.
#pragma once

#include <mpi.h>

#include <vector>

#include "src/comm/mpi_shared.h"

namespace tessera::comm {

// EnvironmentError naming `call` unless it succeeded.
void check_mpi(int status, const char* call);

class MpiWire {
 public:
  // `others` are the ranks on other hosts. `messages` is this world's own, and never given back.
  MpiWire(MPI_Comm messages, std::vector<int> others);

  MPI_Comm messages() const { return messages_; }
  // The first of kGroupTags tags. Two groups may share them by chance; the same groups would then in every
  // run, so no run fails now and then.
  int tags_of(const GroupKey& key) const;
  static constexpr int kGroupTags = 4;

  // Returns when it is on its way, or after a moment.
  void tell_failure(const SharedFailure& failure);
  void tell_ended();
  // Notes in `world` what others told. From any thread.
  void listen(SharedWorld& world);

 private:
  const MPI_Comm messages_;
  const std::vector<int> others_;
  int last_tag_ = 32767;
};

}  // namespace tessera::comm
