// One process's place in a world of processes: its rank, its options, the range that it shares with those of
// its host, and what connects it with those of others.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <optional>

#include "src/comm/failure.h"
#include "src/comm/staged/arenas.h"
#include "src/comm/staged/hosts.h"
#include "src/comm/staged/transport.h"
#include "tessera/communicator.h"
#include "tessera/id_vector.h"

namespace tessera::comm {

struct StagedOptions {
  std::chrono::milliseconds deadline{60'000};
  std::chrono::microseconds delay{0};
  Waiting waiting = Waiting::automatic;
  bool direct = true;                // false: as if the system let no process map another's arena
  const char* settings = "options";  // what the user calls them: "MpiOptions"
};

class StagedWorld {
 public:
  struct Place {
    SharedWorld* shared = nullptr;         // of the processes of this host; counts all ranks of the world
    std::shared_ptr<Wire> wire = nullptr;  // none where all are on one host, as the next
    std::shared_ptr<Transport> transport = nullptr;
    RankHosts hosts = {};
    std::shared_ptr<void> keeper = nullptr;  // of the shared range
  };
  StagedWorld(Place place, const StagedOptions& options);
  // Tells the others that this rank makes no further calls: a store and a notice, and no wait for anybody.
  ~StagedWorld();
  StagedWorld(const StagedWorld&) = delete;
  StagedWorld& operator=(const StagedWorld&) = delete;

  int rank() const { return place_.hosts.rank; }
  int ranks() const { return place_.hosts.ranks(); }
  const StagedOptions& options() const { return options_; }
  const device::WaitPolicy& policy() const { return policy_; }
  SharedWorld& shared() const { return *place_.shared; }

  const std::shared_ptr<RegisteredArenas>& arenas() const { return arenas_; }
  Transport& transport() const { return *place_.transport; }
  bool is_here(int rank) const { return place_.hosts.is_here(rank); }  // on this rank's host

  void fail(int culprit, const std::string& message);
  // What a wait does now and then: notes processes that died, and what ranks of other hosts say.
  void look_around();
  std::optional<Failure> failure() const;  // the first
  // `call` is what this rank was doing: it opens the message.
  [[noreturn]] void throw_failed(const std::string& call) const;
  // Looks around, and throws so if the world has failed.
  void rethrow_failure(const std::string& call);
  // Gives back the room of a group. All groups together wait one deadline at most for who keeps them from it,
  // and none where the world has failed and nobody needs room any more.
  void leave(int group) noexcept;

  // The key of a group, from its parent's, name and ranks (global), and how often this rank asked before.
  GroupKey key_of(const GroupKey& parent, const std::vector<int>& ranks, const std::string& name);

 private:
  const Place place_;
  const StagedOptions options_;
  const device::WaitPolicy policy_;
  const std::shared_ptr<RegisteredArenas> arenas_;
  std::atomic<bool> waited_to_leave_{false};  // in vain
  std::mutex mutex_;
  std::map<std::string, int> occurrences_;  // by parent and arguments; guarded by mutex_
};

}  // namespace tessera::comm
