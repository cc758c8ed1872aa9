// One rank's control connection: calls go out, a thread of its own takes what comes back. Rank 0 also has the
// hub.
#pragma once

#include <map>
#include <optional>
#include <thread>

#include "src/comm/control/hub.h"
#include "src/comm/control/link.h"
#include "src/comm/failure.h"

namespace tessera::comm {

class ControlWorld {
 public:
  // Connects to the hub. CommunicationError where that takes longer than the deadline, where something else
  // answers there, and, with the reason, where the hub has no place for this process. Calls that bring more
  // than `piece_bytes` go in pieces; the same on all ranks.
  explicit ControlWorld(const ControlOptions& options, std::int64_t piece_bytes = kPieceBytes);
  ~ControlWorld();  // tells the hub that this rank makes no further calls
  ControlWorld(const ControlWorld&) = delete;
  ControlWorld& operator=(const ControlWorld&) = delete;

  const ControlOptions& options() const { return options_; }
  int rank() const { return options_.rank; }
  std::int64_t piece_bytes() const { return piece_bytes_; }

  // Has the hub know a group, and returns its key: equal for its members, and no other group's.
  std::uint64_t announce(std::uint64_t parent, const std::vector<int>& ranks, const std::string& name);
  // This rank's part of a call, or of a piece of it; returns the parts of all, behind one another. `call`
  // opens messages. UsageError, and nothing is sent, where a frame does not hold it.
  std::vector<char> exchange(FrameHeader header, std::span<const char> bytes, const std::string& call);

  // Waits a moment at most, whatever this rank's other threads send.
  void fail(int culprit, const std::string& message);
  void rethrow_failure(const std::string& call);
  std::optional<Failure> failure() const;
  std::vector<int> ended() const;

 private:
  struct Slot {
    bool done = false;
    std::vector<char> bytes;
  };

  void join();
  [[noreturn]] void throw_not_found(const std::string& met, const std::string& alone) const;
  // What there was instead of a welcome; empty: this rank is welcome.
  std::string greet(device::Patience& patience);
  std::string place() const;  // where rank 0 should be
  asio::error_code send(const FrameHeader& header, std::span<const char> bytes,
                        std::chrono::nanoseconds within);
  void note_unsent(const std::string& call, const asio::error_code& error, std::chrono::nanoseconds within);
  void receive() noexcept;
  void lose(Failure failure);  // the connection, unless this end closes it
  void note(Failure failure);
  [[noreturn]] void throw_failed(const std::string& call, const Failure& failure) const;

  const ControlOptions options_;
  const std::int64_t piece_bytes_;
  std::unique_ptr<ControlHub> hub_;  // of rank 0; outlives the connection
  ControlLink link_;

  mutable std::mutex mutex_;  // guards the rest
  std::condition_variable changed_;
  std::vector<int> ended_;                  // ranks
  std::map<std::uint64_t, Slot*> slots_;    // calls that wait, by id
  std::map<std::string, int> occurrences_;  // of groups, by arguments
  std::uint64_t last_id_ = 0;
  std::optional<Failure> failure_;
  bool closing_ = false;
  bool heard_ = false;  // of a failure, from the hub
  std::thread receiver_;
};

}  // namespace tessera::comm
