// What ranks on different hosts tell each other outside of calls: that one failed, or has ended. Owns the
// tags of one world's MPI communicator, which its message groups use, too.
#pragma once

#include <mpi.h>

#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "src/comm/mpi/shared.h"

namespace tessera::comm {

// What MPI says of a `call` that returned `status`.
std::string mpi_error(int status, const char* call);
// EnvironmentError naming `call` unless it succeeded.
void check_mpi(int status, const char* call);

class MpiWire {
 public:
  // `others` are the ranks on other hosts. `messages` is this world's own, and never given back.
  MpiWire(MPI_Comm messages, std::vector<int> others);

  MPI_Comm messages() const { return messages_; }
  // The first of the kGroupTags tags of a group's messages, which follow from its key. EnvironmentError where
  // another group that lives has the same and two members or more in common with it: these could take a
  // message of one for the other's. So all of them say, in each run of these groups.
  int take_tags(const GroupKey& key, const std::string& name, const std::vector<int>& ranks);
  void give_back_tags(const GroupKey& key);
  static constexpr int kGroupTags = 4;

  // Returns when it is on its way, or after a moment.
  void tell_failure(const SharedFailure& failure);
  void tell_ended();
  // Notes in `world` what others told. From any thread.
  void listen(SharedWorld& world);

 private:
  struct Taken {
    int tags = 0;
    std::string name;
    std::vector<int> ranks;
  };

  const MPI_Comm messages_;
  const std::vector<int> others_;
  int last_tag_ = 32767;
  std::mutex mutex_;
  std::map<std::pair<std::uint64_t, std::uint64_t>, Taken> taken_;  // by the group's key; guarded by mutex_
};

}  // namespace tessera::comm
