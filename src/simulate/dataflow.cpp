#include "src/simulate/dataflow.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "src/program/opcodes.h"

namespace tessera {

Dataflow::Dataflow(IdVector<const Program*> programs, Issuer issuer, double wake_us)
    : programs_(std::move(programs)), issuer_(issuer), wake_us_(wake_us) {
  Node nodes = 0;
  for (const Program* program : programs_) {
    first_.push_back(nodes);
    nodes += program->instructions.count();
  }
  parent_ = IdVector<Node>(nodes);
  std::iota(parent_.begin(), parent_.end(), 0);
}

Dataflow::Node Dataflow::root(Node of) {
  while (parent_[of] != of) {
    Node& up = parent_[of];
    up = parent_[up];
    of = up;
  }
  return of;
}

void Dataflow::merge(int r, InstructionId x, int s, InstructionId y) {
  parent_[root(node(s, y))] = root(node(r, x));
}

Lane Dataflow::thread_of(Lane lane, Issuer issuer) {
  return issuer == Issuer::runs_all && joins_compute_alone(lane) ? Lane::compute : lane;
}

template <typename Visit>
void Dataflow::each_edge(Visit visit) {
  constexpr InstructionId kNone = -1;
  for (int r = 0; r < programs_.count(); ++r) {
    const IdVector<Instruction>& instructions = programs_[r]->instructions;
    IdArray<InstructionId, kLanes> latest;
    latest.fill(kNone);
    const InstructionId& issued = latest[Lane::compute];  // by the issuer
    for (InstructionId id = 0; id < instructions.count(); ++id) {
      const Instruction& instruction = instructions[id];
      const Lane thread = thread_of(instruction.lane, issuer_);
      InstructionId& prior = latest[thread];
      const Node after = root(node(r, id));
      if (prior != kNone) visit(root(node(r, prior)), {.after = after, .wakes = false});
      if (issuer_ != Issuer::runs_nothing && thread != Lane::compute && issued != kNone)
        visit(root(node(r, issued)), {.after = after, .wakes = true});
      for (const InstructionId wait : instruction.waits)
        visit(root(node(r, wait)),
              {.after = after, .wakes = thread_of(instructions[wait].lane, issuer_) != thread});
      prior = id;
    }
  }
}

void Dataflow::find_edges() {
  edges_into_.assign(parent_.size(), 0);
  begin_.assign(parent_.size() + 1, 0);
  each_edge([&](Node before, const Edge& edge) {
    ++edges_into_[edge.after];
    ++begin_[before + 1];
  });
  std::partial_sum(begin_.begin(), begin_.end(), begin_.begin());
  edges_.resize(begin_.back());
  IdVector<std::size_t> filled = begin_;
  each_edge([&](Node before, const Edge& edge) { edges_[filled[before]++] = edge; });
}

std::vector<Dataflow::Node> Dataflow::order() {
  IdVector<int> missing = edges_into_;
  std::vector<Node> ready;
  for (Node of = 0; of < parent_.count(); ++of)
    if (root(of) == of && missing[of] == 0) ready.push_back(of);
  for (std::size_t next = 0; next < ready.size(); ++next) {
    const Node of = ready[next];
    for (std::size_t edge = begin_[of]; edge < begin_[of + 1]; ++edge)
      if (--missing[edges_[edge].after] == 0) ready.push_back(edges_[edge].after);
  }
  return ready;
}

IdVector<IdVector<Dataflow::Times>> Dataflow::run(const IdVector<IdVector<double>>& durations) {
  find_edges();
  const std::vector<Node> sorted = order();
  std::size_t roots = 0;
  IdVector<double> longest(parent_.size(), 0.0);
  for (int r = 0; r < programs_.count(); ++r)
    for (InstructionId id = 0; id < durations[r].count(); ++id) {
      const Node of = node(r, id);
      roots += root(of) == of;
      double& most = longest[root(of)];
      most = std::max(most, durations[r][id]);
    }
  if (sorted.size() < roots) return {};

  IdVector<double> start(parent_.size(), 0.0);
  for (const Node at : sorted) {
    for (std::size_t edge = begin_[at]; edge < begin_[at + 1]; ++edge) {
      double& later = start[edges_[edge].after];
      later = std::max(later, start[at] + longest[at] + (edges_[edge].wakes ? wake_us_ : 0.0));
    }
  }
  IdVector<IdVector<Times>> times(programs_.size());
  for (int r = 0; r < programs_.count(); ++r)
    for (InstructionId id = 0; id < durations[r].count(); ++id) {
      const Node at = root(node(r, id));
      times[r].push_back({start[at], start[at] + longest[at]});
    }
  return times;
}

}  // namespace tessera
