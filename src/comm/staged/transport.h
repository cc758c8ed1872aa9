// How bytes travel between processes of several hosts, and what their ranks tell each other outside of calls.
// Whoever carries them implements both; message groups and the world use them.
#pragma once

#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "src/comm/staged/shared.h"

namespace tessera::comm {

// A transfer failed, which ends its world.
class TransferError : public std::runtime_error {
 public:
  TransferError(int slot, const std::string& message) : std::runtime_error(message), slot_(slot) {}
  int slot() const { return slot_; }  // of the transfer; -1 where that is not known

 private:
  int slot_;
};

// Transfers of one thread that are waited for together, each in a slot of its own, which is free before it
// begins and after it is done. What they send and where they receive stays valid until then, or until
// abandon() has returned true; else for good.
class Transfers {
 public:
  virtual ~Transfers() = default;

  // Messages from one rank with one tag arrive in the order in which they were sent, with at most `bytes`.
  virtual void receive(int slot, int rank, std::uint64_t tag, void* data, std::int64_t bytes) = 0;
  // Done when the data may be written over.
  virtual void send(int slot, int rank, std::uint64_t tag, const void* data, std::int64_t bytes) = 0;
  // Done when the receiver takes it.
  virtual void send_taken(int slot, int rank, std::uint64_t tag, const void* data, std::int64_t bytes) = 0;
  // Moves on what can move on, without waiting. Returns whether all slots are free.
  virtual bool poll() = 0;
  virtual bool busy(int slot) const = 0;
  // Ends what has begun, without its peers; the world has failed. Returns whether nothing refers any more to
  // what is sent and received.
  virtual bool abandon() = 0;
};

// Carries messages. Any thread may call it.
class Transport {
 public:
  static constexpr int kGroupTags = 4;

  virtual ~Transport() = default;
  virtual std::unique_ptr<Transfers> transfers(int slots) = 0;
  // The first of the kGroupTags tags of a group's messages, which follow from its key. EnvironmentError where
  // another group that lives has the same and two members or more in common with it: these could take a
  // message of one for the other's. So all of them say, in each run of these groups.
  virtual std::uint64_t take_tags(const GroupKey& key, const std::string& name,
                                  const std::vector<int>& ranks) = 0;
  virtual void give_back_tags(const GroupKey& key) = 0;
};

// Carries news of failures and ends. Any thread may call it; a call waits a moment at most.
class Wire {
 public:
  virtual ~Wire() = default;
  virtual void tell_failure(const SharedFailure& failure) = 0;
  // This rank makes no further calls. Where the world has failed, the others hear of that first.
  virtual void tell_ended(bool failed) = 0;
  // Notes in `world` what others told.
  virtual void listen(SharedWorld& world) = 0;
};

}  // namespace tessera::comm
