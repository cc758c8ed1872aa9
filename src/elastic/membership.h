// Who belongs to a world of processes, and when a world may begin: the rules as two pure state machines,
// messages and ticks in, messages and orders out. One launcher decides. Each host has an agent, which starts,
// stops and kills the ranks there. Nothing here knows sockets, clocks or processes.
//
// Change. A world is numbered by its epoch. At any time the ranks that run are of one epoch. First the
// launcher sends the next world to the agents (prepare). An agent stops its ranks, kills those that the next
// world has not, and answers when these are gone. From then on it refuses lower epochs. For a host that does
// not answer, the launcher waits until its lease has ended, when its agent has killed its ranks. Then it
// commits, and agents have the ranks of the world begin.
//
// Votes. The voters of a world are the agents of its hosts and, where there are several, the launcher's seat.
// An agent holds a lease while a majority of voters answers it; without, it kills its ranks at the lease's
// end. So a launcher that is lost ends nothing: agents answer each other. Who has prepared a next world
// answers no agent that it leaves out. When a majority has prepared it, the lease of a host that is left out
// ends within its length, wherever that host is.
//
// Adoption. Another launcher takes the seat by a higher term, which a majority of the agents of each world
// that may run must promise. An agent tells it what it has prepared, and what that was to follow. What the
// launcher before decides reaches no majority any more: it is told the term, and retires.
//
// An agent that is started anew is another host: it has forgotten what it promised.
#pragma once

#include <compare>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <variant>
#include <vector>

namespace tessera::elastic {

using HostId = int;
using ProcessId = std::int64_t;  // of a process that was started once; never used again
using Epoch = std::int64_t;      // from 1; 0: no world
using Time = std::int64_t;       // ns of any clock that goes on evenly; each machine has its own

// A launcher's claim to the seat: the highest counts. No two launchers have the same.
struct Term {
  std::int64_t number = 0;
  std::int64_t launcher = 0;
  auto operator<=>(const Term&) const = default;  // NOLINT(modernize-use-nullptr): of its own code
};

struct Member {
  HostId host = 0;
  ProcessId process = 0;
  auto operator<=>(const Member&) const = default;  // NOLINT(modernize-use-nullptr): likewise
};

struct World {
  Epoch epoch = 0;
  std::vector<Member> members;  // ascending
  bool operator==(const World&) const = default;

  // Whether these agents, and the seat if it is given, are a majority of the voters.
  bool is_majority(const std::function<bool(HostId)>& votes, bool seat) const;
  std::set<HostId> hosts() const;
  bool has(HostId host) const;
  bool has(const Member& member) const;
};

// Epoch 0, which runs nothing: its voters decide on the first world that does.
World founding_world(const std::set<HostId>& hosts);

// ---- messages ----

// Launcher to agent, which promises the term in answer.
struct Claim {
  Term term;
};
// Also the answer to a Prepare whose epoch is too low.
struct Promise {
  HostId host = 0;
  Term term;
  World accepted;            // the newest that it prepared
  std::vector<World> bases;  // of that
  World committed;           // the newest that it knows to be
  std::vector<Member> alive;
};
struct Prepare {
  Term term;
  World world;
  World committed;           // the newest that the launcher knows to be
  std::vector<World> bases;  // that may run until this one is committed, which needs a majority of each
};
struct Prepared {
  HostId host = 0;
  Term term;
  Epoch epoch = 0;
};
struct Commit {
  Term term;
  World world;
};
// Agent to launcher, now and then.
struct Alive {
  HostId host = 0;
  Epoch running = 0;   // whose ranks run there; 0: none do
  Epoch accepted = 0;  // of the newest world that it has prepared
  std::vector<Member> alive;
};
// Agent to all voters of its world.
struct Renew {
  HostId host = 0;
  Epoch epoch = 0;
  std::int64_t number = 0;  // of the question
};
constexpr HostId kSeat = -1;
struct Renewed {
  HostId voter = kSeat;
  Term term;  // of the seat, or that the agent has promised
  Epoch epoch = 0;
  std::int64_t number = 0;
};
// To a launcher whose seat another one has taken.
struct Retire {
  Term term;
};
using Message = std::variant<Claim, Promise, Prepare, Prepared, Commit, Alive, Renew, Renewed, Retire>;

// A message to a host's agent, or to the launcher (kSeat). Any may be lost, doubled, late or overtaken.
struct Letter {
  HostId to = 0;
  Message message;
};

// ---- the agent of a host ----

struct Timing {
  Time lease = 0;   // of an agent; it kills its ranks at the end
  Time margin = 0;  // more than clocks may differ over a lease, and a kill may take
  Time resend = 0;  // questions are asked again after so long
};

// What an agent is to do with the processes of its host.
struct Orders {
  std::vector<ProcessId> kill;
  bool stop = false;           // all ranks: they leave the epoch that they run, and wait
  std::optional<World> begin;  // the ranks of this host that are members begin
  std::vector<Letter> letters;
};

class Agent {
 public:
  // `founding` is founding_world() of the first launcher's hosts, on those; empty on hosts that come later.
  Agent(HostId host, World founding, const Timing& timing)
      : host_(host), timing_(timing), accepted_(founding), committed_(std::move(founding)) {}

  // A process is there, which has not begun.
  void started(ProcessId process);
  // A process has ended or was seen gone after a kill.
  Orders gone(ProcessId process);
  // All ranks have left their epoch after a stop.
  Orders stopped();
  Orders receive(const Message& message, HostId from, Time now);
  // Each resend interval or sooner.
  Orders tick(Time now);

  Epoch running() const { return running_; }
  const World& accepted() const { return accepted_; }
  const World& committed() const { return committed_; }
  const std::vector<World>& bases() const { return bases_; }  // of accepted()

 private:
  bool heed(Term term, HostId from, Orders& orders);
  void receive(const Claim& claim, Orders& orders);
  void receive(const Prepare& prepare, Orders& orders);
  void receive(const Commit& commit, Time now, Orders& orders);
  void receive(const Renew& renew, HostId from, Orders& orders) const;
  void receive(const Renewed& renewed);
  bool renewed_by_majority() const;
  void answer_prepared(Orders& orders) const;
  void kill_ranks(const World& next, Orders& orders);
  std::vector<Member> alive() const;
  Promise promise() const;

  const HostId host_;
  const Timing timing_;
  Term promised_;
  World accepted_;
  Term accepted_term_;        // that it was prepared by
  std::vector<World> bases_;  // of accepted_
  World committed_;
  Epoch running_ = 0;
  bool stops_ = false;  // ranks were told to stop, and are not yet
  std::set<ProcessId> processes_;
  std::set<ProcessId> dying_;  // were told to be killed, and are not yet gone
  // The lease of running_.
  Time lease_end_ = 0;
  Time asked_at_ = 0;
  std::int64_t asked_ = 0;          // number of the last question
  std::map<HostId, Term> answers_;  // to it
  Time sent_at_ = 0;                // the last Alive
};

// ---- the launcher ----

class Launcher {
 public:
  // The first one, of hosts that run nothing yet.
  Launcher(std::set<HostId> hosts, const Timing& timing);
  // Number `launcher`, above 0 and used by no other: adopts what these hosts run. It acts when a majority of
  // the agents of each world that may run has promised it the seat. `above`: the number of the highest term
  // that is known of, as told() of one that had to retire.
  static Launcher adopting(std::set<HostId> hosts, std::int64_t launcher, const Timing& timing,
                           std::int64_t above = 1);

  // The world that is wanted next: these processes, of which the agents have told. Asks for a new epoch where
  // it is another than the last one. Nothing while the seat is not taken.
  std::vector<Letter> want(const std::vector<Member>& members, Time now);
  std::vector<Letter> receive(const Message& message, Time now);
  std::vector<Letter> tick(Time now);

  bool retired() const { return retired_; }
  bool seated() const { return seated_; }
  // The last world that was committed, by this launcher or, as it was told, before.
  const World& committed() const { return committed_; }
  bool changes() const { return next_.has_value(); }
  // All processes of which agents have told lately, by host.
  const std::map<HostId, std::vector<Member>>& alive() const { return alive_; }
  Term term() const { return term_; }
  std::int64_t told() const { return told_; }  // the highest number of a term that it has heard of

 private:
  void propose(std::vector<Member> members);
  void receive(const Promise& promise);
  void receive(const Prepared& prepared);
  void hear_of(Epoch epoch);
  void take_seat_if_promised();
  void commit_if_ready(Time now, std::vector<Letter>& letters);
  bool majority_prepared(const World& world) const;
  void send_prepare(std::vector<Letter>& letters) const;
  void send_commit(std::vector<Letter>& letters) const;

  Timing timing_;
  std::set<HostId> hosts_;
  Term term_{.number = 1, .launcher = 0};
  std::int64_t told_ = 1;
  bool seated_ = true, retired_ = false;
  std::map<HostId, Promise> promises_;  // to this term
  Epoch highest_ = 0;                   // epoch that any agent may have accepted
  bool overtaken_ = false;              // an agent has left the committed world for one that was given up
  World committed_;
  std::vector<World> may_run_;  // worlds that were committed, or may have been, and are not known to be over
  std::optional<World> next_;
  std::set<HostId> prepared_;       // of next_
  std::optional<Time> leases_end_;  // of hosts that have not prepared next_; unset until majorities have
  std::map<HostId, std::vector<Member>> alive_;
  Time sent_at_ = 0;
};

}  // namespace tessera::elastic
