// Where all ranks of a world of control connections meet: a thread in rank 0's process. It brings together
// the members' parts of each call, compares them, keeps the deadlines, and tells all of the first failure.
#pragma once

#include <map>
#include <memory>
#include <thread>

#include "src/comm/blame.h"
#include "src/comm/control/listener.h"
#include "src/comm/control/session.h"
#include "src/device/wait.h"
#include "tessera/id_vector.h"

namespace tessera::comm {

class ControlHub {
 public:
  // Rank 0 hears of a failure when the others have been told, and at the latest behind this.
  static constexpr std::chrono::milliseconds kTells{500};

  // EnvironmentError where the port cannot be listened on.
  explicit ControlHub(const ControlOptions& options);
  // Serves the others until they have ended, at most for the deadline. Where the world has failed, it waits a
  // moment at most: for those that are still to come, to tell them too, and for those that take nothing.
  ~ControlHub();
  ControlHub(const ControlHub&) = delete;
  ControlHub& operator=(const ControlHub&) = delete;

  // Rank 0 cannot be of the world: the others are told why.
  void give_up(const std::string& why);

 private:
  using SessionPointer = ControlSession::Pointer;

  struct Group {
    struct Status {
      WireCall call;
      std::uint64_t sequence = 0;
    };
    std::string name;
    IdVector<int> ranks;
    IdVector<Status> statuses;  // by member
  };
  // A call of which some members' parts have come.
  struct Part {
    SessionPointer from;  // none: not yet
    Frame frame;
    device::Patience patience{std::chrono::nanoseconds::zero()};
  };
  struct Pending {
    std::uint64_t group = 0;
    IdVector<int> members;
    IdVector<Part> parts;  // by place in members
    bool message = false;
  };
  // One that would be a rank that is there, which may be about to end.
  struct Held {
    SessionPointer session;
    Hello hello;
    device::Patience patience;
  };
  // Of the group, its members' messages (sender and receiver; -1 and -1: of collectives), the number, and the
  // piece.
  using Key = std::array<std::uint64_t, 5>;

  void serve() noexcept;
  std::string run();  // what ended it; empty: it is done
  void take_connection(asio::ip::tcp::socket socket);
  void take(const SessionPointer& session, Frame frame);
  void greet(const SessionPointer& session, const Hello& hello);
  void refuse(const SessionPointer& session, const Hello& hello, const std::string& why);
  void end(int rank);
  bool settle(Held& held);                          // false: not yet
  std::string objection(const Hello& hello) const;  // empty: it is welcome
  void drop(const SessionPointer& session);
  void lose(const SessionPointer& session, const char* why);
  void take_group(const SessionPointer& session, const Frame& frame);
  void take_call(const SessionPointer& session, Frame frame);
  void complete(const Pending& pending);
  bool matches(const Pending& pending);
  void look();
  // What a part waits for in vain: its deadline passed, or a member has ended.
  bool look_at(Pending& pending);
  IdVector<RankState> states(const std::vector<int>& absent) const;
  void fail(int reporter, int culprit, const std::string& message);
  void tell_rank_zero();
  // The system has what all are sent, and sends it even if this process ends.
  bool written() const;
  bool done();
  void close() noexcept;
  bool is_of_world(int rank) const { return rank >= 0 && rank < world_; }
  bool has_come(int rank) const { return came_[rank]; }
  bool has_ended(int rank) const { return ended_[rank]; }
  std::string text(const Pending& pending, const Part& part, bool full) const;
  std::string status_text(const Group& group, int member) const;

  const int world_;
  const std::chrono::nanoseconds deadline_;
  const std::string launch_;
  asio::io_context io_;
  ControlListener listener_;
  asio::steady_timer timer_;
  const ControlSession::Handlers handlers_;
  std::vector<SessionPointer> sessions_;
  std::vector<Held> held_;
  IdVector<bool> came_, ended_;         // by rank
  std::map<int, std::string> refused_;  // why the last one was that said it is that rank
  std::map<std::uint64_t, Group> groups_;
  std::map<Key, Pending> pending_;
  bool failed_ = false;
  FrameHeader failure_;
  ControlSession::Bytes failure_text_;
  bool rank_zero_told_ = false;
  device::Patience telling_{std::chrono::nanoseconds::zero()};  // since it failed
  bool closing_ = false;
  // Since it is closing.
  device::Patience linger_{std::chrono::nanoseconds::zero()}, latecomers_{std::chrono::nanoseconds::zero()};
  std::thread thread_;
};

}  // namespace tessera::comm
