#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <ranges>
#include <set>
#include <tuple>
#include <utility>

#include "src/program/meetings.h"
#include "src/program/opcodes.h"
#include "src/program/rank_classes.h"
#include "src/verify/checks.h"

namespace tessera {
namespace {

bool alike(const Program& a, const Operand& x, const Program& b, const Operand& y) {
  const Buffer& left = a.buffers[x.buffer];
  const Buffer& right = b.buffers[y.buffer];
  const auto key = [](const Operand& of) { return std::tuple(of.role, of.type, of.access); };
  return key(x) == key(y) && x.region == y.region && left.role == right.role && left.flat == right.flat &&
         left.bytes == right.bytes;
}

// Whether two ranks that meet in these two collectives mean the same.
bool alike(const Program& a, InstructionId x, const Program& b, InstructionId y) {
  const Instruction& left = at(a, x);
  const Instruction& right = at(b, y);
  const auto key = [](const Instruction& of) {
    return std::tuple(of.op, of.unit, of.microbatch, of.contributors, of.wire_type());
  };
  const auto depends_on = [](const Program& of, const Instruction& on) {
    return on.when < 0 ? -1 : static_cast<int>(of.buffers[on.when].role);
  };
  // Of a sum, one rank may have something to add and the other not.
  const bool both_give = left.find(Role::from) != nullptr && right.find(Role::from) != nullptr;
  const auto compared = [&](const Instruction& of) {
    return std::views::filter(of.operands, [&](const Operand& operand) {
      return both_give || left.contributors.all() || operand.role != Role::from;
    });
  };
  return key(left) == key(right) && depends_on(a, left) == depends_on(b, right) &&
         std::ranges::equal(compared(left), compared(right), [&](const Operand& one, const Operand& other) {
           return alike(a, one, b, other);
         });
}

class World {
 public:
  World(const WorldPrograms& world, Findings& findings)
      : world_(world), findings_(findings), classes_(rank_classes(world)) {
    for (const Program& program : world.programs) meetings_.emplace_back(program);
  }

  void run() {
    check_contributors();
    if (classes_.size() == 1) return;  // one program whose waits point back: every rank runs it to its end
    if (match() && match_messages()) find_deadlock();
  }

 private:
  // An instruction of a class: a node of the graph of waits, before matched collectives are merged. Where
  // communication starts in order, its start is a node of its own.
  using Node = int;
  struct Edge {
    Node before = -1;
    Node after = -1;
  };

  const Program& program(int index) const { return world_.programs[index]; }
  const Program& program_of(const RankClass& of) const { return program(of.program); }
  const Meetings& meetings_of(const RankClass& of) const { return meetings_[of.program]; }

  // A rank of class `peer` in the group of `one`.
  int peer_rank(const RankClass& one, Axis axis, const RankClass& peer) const {
    for (int rank : world_.mesh.group(axis, one.rank))
      if (world_.program_of_rank[rank] == peer.program) return rank;
    return peer.rank;
  }

  // A rank has a part to give exactly where it is among those that contribute to a microbatch, in one sum or
  // in several of its blocks.
  void check_contributors() {
    struct Places {
      int first = -1, last = -1;  // the ranks of a program that come first and last along the axis
    };
    for (const Axis axis : {Axis::replicate, Axis::shard}) {
      const auto place = [&](int rank) { return world_.mesh.place(rank, axis); };
      IdVector<Places> places(world_.programs.size());
      for (int rank = 0; rank < world_.mesh.world(); ++rank) {
        Places& of = places[world_.program_of(rank)];
        if (of.first < 0 || place(rank) < place(of.first)) of.first = rank;
        if (of.last < 0 || place(rank) > place(of.last)) of.last = rank;
      }
      for (int index = 0; index < places.count(); ++index) {
        if (places[index].first < 0) continue;
        const Program& runs = program(index);
        const std::span<const InstructionId> sums = meetings_[index].collectives(axis, Lane::reduce);
        std::map<std::pair<FlatId, int>, int> contribute;  // [flat, microbatch]: the first so many ranks
        const auto contributing = [&](const Instruction& sum) -> int& {
          return contribute[{runs.flat_of(sum), sum.microbatch}];
        };
        for (const InstructionId id : sums) {
          const auto [first, count] = at(runs, id).contributors.among(world_.mesh.extent(axis));
          contributing(at(runs, id)) = std::max(contributing(at(runs, id)), first + count);
        }
        for (const InstructionId id : sums) {
          const bool gives = at(runs, id).find(Role::from) != nullptr;
          const int rank = gives ? places[index].last : places[index].first;
          const int contributors = contributing(at(runs, id));
          if (gives == (place(rank) < contributors)) continue;
          ++mismatches_;
          findings_.add(
              Fault::collective_mismatch, index, {id},
              fmt::format("{} adds up parts of the first {} ranks along {}, but rank {}, number {} there, {}",
                          describe(runs, id), contributors, name_of(axis), rank, place(rank),
                          gives ? "gives one, too" : "gives none"));
        }
      }
    }
  }

  template <typename Visit>
  void each_meeting(Visit visit) const {
    for (int c = 0; c < classes_.count(); ++c)
      for (std::size_t axis = 0; axis < kGroups; ++axis)
        for (int d : classes_[c].meets[axis])
          if (d > c) visit(c, axis, d);
  }

  bool match() {
    const std::size_t before = mismatches_;
    std::set<std::tuple<int, std::size_t, int>> seen;
    each_meeting([&](int c, std::size_t axis, int d) {
      const RankClass& one = classes_[c];
      const RankClass& other = classes_[d];
      if (one.program == other.program || !seen.insert({one.program, axis, other.program}).second) return;
      for (int lane = 0; lane < kLanes; ++lane)
        compare(one, other, static_cast<Axis>(axis), static_cast<Lane>(lane));
    });
    return mismatches_ == before;
  }

  void compare(const RankClass& one, const RankClass& other, Axis axis, Lane lane) {
    const std::span<const InstructionId> mine = meetings_of(one).collectives(axis, lane);
    const std::span<const InstructionId> theirs = meetings_of(other).collectives(axis, lane);
    for (std::size_t k = 0; k < std::max(mine.size(), theirs.size()); ++k) {
      const bool both = k < mine.size() && k < theirs.size();
      if (both && alike(program_of(one), mine[k], program_of(other), theirs[k])) continue;
      ++mismatches_;
      const auto says = [&](const RankClass& who, int rank, std::span<const InstructionId> list) {
        return k < list.size() ? fmt::format("rank {} issues {}", rank, describe(program_of(who), list[k]))
                               : fmt::format("rank {} issues none", rank);
      };
      const bool first_has = k < mine.size();
      findings_.add(
          Fault::collective_mismatch, first_has ? one.program : other.program,
          {first_has ? mine[k] : theirs[k]},
          fmt::format("collective {} of the {} lane along {}: {}, but {}", k, name_of(lane), name_of(axis),
                      says(one, one.rank, mine), says(other, peer_rank(one, axis, other), theirs)));
      return;  // what follows is out of step
    }
  }

  // Calls visit(sender, its sends, receiver, its receives) for every pair of classes and kind of message.
  template <typename Visit>
  void each_exchange(Visit visit) const {
    for (int c = 0; c < classes_.count(); ++c) {
      const RankClass& sender = classes_[c];
      for (int peer = 0; peer < world_.mesh.pipeline; ++peer) {
        if (peer == program_of(sender).pipeline_rank) continue;
        const int d = sender.along_pipeline[peer];
        const RankClass& receiver = classes_[d];
        for (Lane lane : {Lane::send_output, Lane::send_gradient})
          visit(c, meetings_of(sender).messages(lane, peer), d,
                meetings_of(receiver).messages(other_end(lane), program_of(sender).pipeline_rank), lane);
      }
    }
  }

  // A message means the same at both ends: of which unit or flat, which microbatch, and how many bytes.
  bool same_message(const Program& a, InstructionId x, const Program& b, InstructionId y) const {
    const Instruction& sent = at(a, x);
    const Instruction& received = at(b, y);
    const Operand& from = sent.operand(Role::from);
    const Operand& to = received.operand(Role::to);
    const Buffer& left = a.buffers[from.buffer];
    const Buffer& right = b.buffers[to.buffer];
    const bool of_flat = from.region.kind == Region::Kind::part;
    return std::tuple(sent.unit, sent.microbatch, from.type) ==
               std::tuple(received.unit, received.microbatch, to.type) &&
           from.region == to.region && (of_flat ? left.flat == right.flat : left.bytes == right.bytes);
  }

  bool match_messages() {
    const std::size_t before = mismatches_;
    each_exchange([&](int c, std::span<const InstructionId> sends, int d,
                      std::span<const InstructionId> receives, Lane lane) {
      const RankClass& sender = classes_[c];
      const RankClass& receiver = classes_[d];
      for (std::size_t k = 0; k < std::max(sends.size(), receives.size()); ++k) {
        const bool sent = k < sends.size(), received = k < receives.size();
        if (sent && received && same_message(program_of(sender), sends[k], program_of(receiver), receives[k]))
          continue;
        ++mismatches_;
        const auto says = [&](const RankClass& who, std::span<const InstructionId> list) {
          return k < list.size()
                     ? fmt::format("rank {} issues {}", who.rank, describe(program_of(who), list[k]))
                     : fmt::format("rank {} issues none", who.rank);
        };
        findings_.add(Fault::collective_mismatch, sent ? sender.program : receiver.program,
                      {sent ? sends[k] : receives[k]},
                      fmt::format("message {} of the {} lane: {}, but {}", k, name_of(lane),
                                  says(sender, sends), says(receiver, receives)));
        return;
      }
    });
    return mismatches_ == before;
  }

  Node node(int c, InstructionId id) const { return first_node_[c] + id; }
  Node start(int c, InstructionId id) const { return node(c, id) + numel_of(c); }
  int numel_of(int c) const { return program_of(classes_[c]).instructions.count(); }
  int class_of(Node of) const {
    return static_cast<int>(std::ranges::upper_bound(first_node_, of) - first_node_.begin()) - 1;
  }
  InstructionId instruction_of(Node of) const {
    const int c = class_of(of);
    return (of - first_node_[c]) % numel_of(c);
  }
  Node root(Node of) {
    while (parent_[of] != of) {
      Node& up = parent_[of];
      up = parent_[up];
      of = up;
    }
    return of;
  }

  // Collectives that meet become one node: it starts when all have been reached.
  void merge_collectives() {
    Node nodes = 0;
    for (const RankClass& one : classes_) {
      first_node_.push_back(nodes);
      nodes += (world_.starts_in_order ? 2 : 1) * program_of(one).instructions.count();
    }
    for (Node of = 0; of < nodes; ++of) parent_.push_back(of);
    each_meeting([&](int c, std::size_t axis, int d) {
      for (int lane = 0; lane < kLanes; ++lane) {
        const auto on = [&](int of) {
          return meetings_of(classes_[of]).collectives(static_cast<Axis>(axis), static_cast<Lane>(lane));
        };
        const std::span<const InstructionId> mine = on(c), theirs = on(d);
        for (std::size_t k = 0; k < mine.size(); ++k)
          parent_[root(node(d, theirs[k]))] = root(node(c, mine[k]));
      }
    });
    each_exchange([&](int c, std::span<const InstructionId> sends, int d,
                      std::span<const InstructionId> receives, Lane) {
      for (std::size_t k = 0; k < sends.size(); ++k)
        parent_[root(node(d, receives[k]))] = root(node(c, sends[k]));
    });
  }

  void add_edges() {
    edges_into_.resize(parent_.size());
    after_.resize(parent_.size());
    const auto add = [&](Node before, Node after) {
      edges_into_[root(after)].push_back({before, after});
      after_[root(before)].push_back(root(after));
    };
    for (int c = 0; c < classes_.count(); ++c) {
      const Program& runs = program_of(classes_[c]);
      LaneClock latest = kNothingOver;
      InstructionId started = -1;  // the last that communicates
      InstructionId issued = -1;   // the last that the issuing thread runs itself
      for (InstructionId id = 0; id < runs.instructions.count(); ++id) {
        const bool in_order = world_.starts_in_order && communicates(at(runs, id).op);
        const Node begin = in_order ? start(c, id) : node(c, id);
        InstructionId& prior = latest[at(runs, id).lane];
        if (prior >= 0) add(node(c, prior), begin);
        prior = id;
        for (InstructionId wait : at(runs, id).waits) add(node(c, wait), begin);
        if (issued >= 0) add(node(c, issued), begin);
        if (runs_itself(at(runs, id))) issued = id;
        if (!in_order) continue;
        if (started >= 0) add(start(c, started), begin);
        add(begin, node(c, id));
        started = id;
      }
    }
  }

  bool runs_itself(const Instruction& instruction) const {
    switch (world_.issuer_runs) {
      case IssuerRuns::nothing:
        return false;
      case IssuerRuns::compute:
        return instruction.lane == Lane::compute;
      case IssuerRuns::all_but_messages:
        return !is_message(instruction.op);
    }
    return false;
  }

  // Takes away what can run until nothing more can; what is left holds a cycle.
  void find_deadlock() {
    merge_collectives();
    add_edges();
    IdVector<std::size_t> missing(parent_.size());
    std::vector<Node> ready;
    for (Node of = 0; of < parent_.count(); ++of) {
      missing[of] = edges_into_[of].size();
      if (root(of) == of && missing[of] == 0) ready.push_back(of);
    }
    while (!ready.empty()) {
      const Node of = ready.back();
      ready.pop_back();
      for (Node next : after_[of])
        if (--missing[next] == 0) ready.push_back(next);
    }
    for (Node of = 0; of < parent_.count(); ++of)
      if (missing[of] > 0) return report_cycle(cycle_from(of, missing));
  }

  // Walks from one stuck node to a stuck one before it until it comes round.
  std::vector<Edge> cycle_from(Node start, const IdVector<std::size_t>& missing) {
    std::vector<Edge> walk;
    std::map<Node, std::size_t> seen;
    for (Node here = root(start); seen.try_emplace(here, walk.size()).second;) {
      for (const Edge& edge : edges_into_[here]) {
        if (missing[root(edge.before)] == 0) continue;
        walk.push_back(edge);
        break;
      }
      here = root(walk.back().before);
      if (seen.contains(here)) return {walk.begin() + static_cast<std::ptrdiff_t>(seen.at(here)), walk.end()};
    }
    return walk;
  }

  void report_cycle(const std::vector<Edge>& cycle) {
    std::vector<Edge> hops;  // a stretch within one rank is one hop
    for (const Edge& edge : cycle) {
      if (!hops.empty() && hops.back().before == edge.after) {
        hops.back().before = edge.before;
      } else {
        hops.push_back(edge);
      }
    }
    if (hops.size() > 1 && hops.back().before == hops.front().after) {
      hops.front().after = hops.back().after;
      hops.pop_back();
    }
    const int index = classes_[class_of(hops.front().after)].program;
    std::string message = "these wait for each other: ";
    std::set<InstructionId> instructions;
    for (const Edge& hop : hops) {
      const RankClass& who = classes_[class_of(hop.after)];
      message += fmt::format("{}on rank {} {} comes behind {}", &hop == hops.data() ? "" : "; ", who.rank,
                             describe(program_of(who), instruction_of(hop.after)),
                             describe(program_of(who), instruction_of(hop.before)));
      if (who.program != index) continue;
      instructions.insert(instruction_of(hop.before));
      instructions.insert(instruction_of(hop.after));
    }
    findings_.add(Fault::deadlock, index, {instructions.begin(), instructions.end()}, message);
  }

  const WorldPrograms& world_;
  Findings& findings_;
  IdVector<RankClass> classes_;
  IdVector<Meetings> meetings_;  // by program
  std::size_t mismatches_ = 0;

  IdVector<Node> first_node_;               // by class
  IdVector<Node> parent_;                   // union-find over nodes
  IdVector<std::vector<Edge>> edges_into_;  // by root
  IdVector<std::vector<Node>> after_;       // by root: roots
};

}  // namespace

void check_collectives(const WorldPrograms& world, Findings& findings) { World(world, findings).run(); }

}  // namespace tessera
