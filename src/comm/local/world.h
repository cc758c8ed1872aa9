// What all communicators of one world of threads share: who failed first, who has ended, and the groups made
// so far.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <optional>

#include "src/comm/blame.h"
#include "src/comm/failure.h"
#include "src/device/wait.h"
#include "tessera/communicator.h"
#include "tessera/id_vector.h"

namespace tessera::comm {

class LocalGroup;

class LocalWorld {
 public:
  LocalWorld(int ranks, const LocalOptions& options);

  int ranks() const { return ranks_; }
  const LocalOptions& options() const { return options_; }
  const device::WaitPolicy& policy() const { return policy_; }

  // The first failure stays; the world has failed for good. `late`: ranks for which the reporter has waited
  // the deadline.
  void fail(int reporter, int culprit, const std::string& message, const std::vector<int>& late = {});
  bool failed() const noexcept { return failed_.load(); }
  std::optional<Failure> first_failure() const;
  bool late(int rank) const;  // by the first failure
  // `call` is what `rank` was doing: it opens the message.
  [[noreturn]] void throw_failed(int rank, const std::string& call) const;

  // A rank that has ended makes no further calls.
  void end(int rank) noexcept;
  bool ended(int rank) const noexcept;
  bool any_ended() const noexcept { return ended_count_.load() > 0; }
  void set_state(int rank, RankState state) noexcept { states_[rank].store(state); }
  RankState state(int rank) const noexcept { return states_[rank].load(); }

  // The group that `member` asks for: that of its peers' calls with the same arguments, each first, second,
  // ... call of a member meeting the first, second, ... of the others. `ranks` are global.
  std::shared_ptr<LocalGroup> join_group(const LocalGroup* parent, const std::vector<int>& ranks,
                                         const std::string& name, int member);

 private:
  struct Pending {
    std::shared_ptr<LocalGroup> group;
    std::size_t joined = 0;
  };

  const int ranks_;
  const LocalOptions options_;
  const device::WaitPolicy policy_;
  std::atomic<bool> failed_{false};
  std::atomic<int> ended_count_{0};
  IdVector<std::atomic<bool>> ended_;
  IdVector<std::atomic<RankState>> states_;
  mutable std::mutex mutex_;  // guards the rest
  Failure failure_;
  std::vector<int> late_;
  std::map<std::string, Pending> pending_;                  // by arguments and occurrence
  std::map<std::pair<int, std::string>, int> occurrences_;  // by member and arguments
};

// Held by all communicators of a rank: it has ended when the last of them is gone.
class LocalPresence {
 public:
  LocalPresence(std::shared_ptr<LocalWorld> world, int rank) : world_(std::move(world)), rank_(rank) {}
  ~LocalPresence() { world_->end(rank_); }
  LocalPresence(const LocalPresence&) = delete;
  LocalPresence& operator=(const LocalPresence&) = delete;

 private:
  const std::shared_ptr<LocalWorld> world_;
  const int rank_;
};

}  // namespace tessera::comm
