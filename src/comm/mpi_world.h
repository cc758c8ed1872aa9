// One process's place in a world of processes on one host: its rank, its options, and the shared range where
// it meets the others. Includes nothing of MPI, which only made the range.
#pragma once

#include <map>
#include <memory>
#include <mutex>

#include "src/comm/mpi_shared.h"
#include "tessera/communicator.h"

namespace tessera::comm {

class MpiWorld {
 public:
  struct Place {
    SharedWorld* shared = nullptr;
    std::shared_ptr<void> keeper = nullptr;  // of the shared range
    int rank = 0, ranks = 1;
  };
  MpiWorld(Place place, const MpiOptions& options);
  // Tells the others that this rank makes no further calls: a store, no exchange.
  ~MpiWorld();
  MpiWorld(const MpiWorld&) = delete;
  MpiWorld& operator=(const MpiWorld&) = delete;

  int rank() const { return place_.rank; }
  int ranks() const { return place_.ranks; }
  const MpiOptions& options() const { return options_; }
  const device::WaitPolicy& policy() const { return policy_; }
  SharedWorld& shared() const { return *place_.shared; }

  void fail(int culprit, const std::string& message) { shared().fail(rank(), culprit, message); }
  // `call` is what this rank was doing: it opens the message.
  [[noreturn]] void throw_failed(const std::string& call) const;

  // The key of a group, from its parent's, name and ranks (global), and how often this rank asked before.
  GroupKey key_of(const GroupKey& parent, const std::vector<int>& ranks, const std::string& name);

 private:
  const Place place_;
  const MpiOptions options_;
  const device::WaitPolicy policy_;
  std::mutex mutex_;
  std::map<std::string, int> occurrences_;  // by parent and arguments; guarded by mutex_
};

}  // namespace tessera::comm
