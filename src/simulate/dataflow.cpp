#include "src/simulate/dataflow.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <utility>

#include "src/program/opcodes.h"

namespace tessera {

Dataflow::Dataflow(std::vector<const Program*> programs, Issuer issuer, double wake_us)
    : programs_(std::move(programs)), issuer_(issuer), wake_us_(wake_us) {
  Node nodes = 0;
  for (const Program* program : programs_) {
    first_.push_back(nodes);
    nodes += static_cast<Node>(program->instructions.size());
  }
  parent_.resize(static_cast<std::size_t>(nodes));
  std::iota(parent_.begin(), parent_.end(), 0);
}

Dataflow::Node Dataflow::root(Node of) {
  while (parent_[static_cast<std::size_t>(of)] != of) {
    Node& up = parent_[static_cast<std::size_t>(of)];
    up = parent_[static_cast<std::size_t>(up)];
    of = up;
  }
  return of;
}

void Dataflow::merge(int r, InstructionId x, int s, InstructionId y) {
  parent_[static_cast<std::size_t>(root(node(s, y)))] = root(node(r, x));
}

Lane Dataflow::thread_of(Lane lane, Issuer issuer) {
  return issuer == Issuer::runs_all && joins_compute_alone(lane) ? Lane::compute : lane;
}

template <typename Visit>
void Dataflow::each_edge(Visit visit) {
  constexpr InstructionId kNone = -1;
  for (int r = 0; r < static_cast<int>(programs_.size()); ++r) {
    const std::vector<Instruction>& instructions = programs_[static_cast<std::size_t>(r)]->instructions;
    std::array<InstructionId, kLanes> latest;
    latest.fill(kNone);
    const InstructionId& issued = latest[static_cast<std::size_t>(Lane::compute)];  // by the issuer
    for (InstructionId id = 0; id < static_cast<InstructionId>(instructions.size()); ++id) {
      const Instruction& instruction = instructions[static_cast<std::size_t>(id)];
      const Lane thread = thread_of(instruction.lane, issuer_);
      InstructionId& prior = latest[static_cast<std::size_t>(thread)];
      const Node after = root(node(r, id));
      if (prior != kNone) visit(root(node(r, prior)), {.after = after, .wakes = false});
      if (issuer_ != Issuer::runs_nothing && thread != Lane::compute && issued != kNone)
        visit(root(node(r, issued)), {.after = after, .wakes = true});
      for (const InstructionId wait : instruction.waits)
        visit(root(node(r, wait)),
              {.after = after,
               .wakes = thread_of(instructions[static_cast<std::size_t>(wait)].lane, issuer_) != thread});
      prior = id;
    }
  }
}

void Dataflow::find_edges() {
  edges_into_.assign(parent_.size(), 0);
  begin_.assign(parent_.size() + 1, 0);
  each_edge([&](Node before, const Edge& edge) {
    ++edges_into_[static_cast<std::size_t>(edge.after)];
    ++begin_[static_cast<std::size_t>(before) + 1];
  });
  std::partial_sum(begin_.begin(), begin_.end(), begin_.begin());
  edges_.resize(begin_.back());
  std::vector<std::size_t> filled = begin_;
  each_edge(
      [&](Node before, const Edge& edge) { edges_[filled[static_cast<std::size_t>(before)]++] = edge; });
}

std::vector<Dataflow::Node> Dataflow::order() {
  std::vector<int> missing = edges_into_;
  std::vector<Node> ready;
  for (Node of = 0; of < static_cast<Node>(parent_.size()); ++of)
    if (root(of) == of && missing[static_cast<std::size_t>(of)] == 0) ready.push_back(of);
  for (std::size_t next = 0; next < ready.size(); ++next) {
    const auto of = static_cast<std::size_t>(ready[next]);
    for (std::size_t edge = begin_[of]; edge < begin_[of + 1]; ++edge)
      if (--missing[static_cast<std::size_t>(edges_[edge].after)] == 0) ready.push_back(edges_[edge].after);
  }
  return ready;
}

std::vector<std::vector<Dataflow::Times>> Dataflow::run(const std::vector<std::vector<double>>& durations) {
  find_edges();
  const std::vector<Node> sorted = order();
  std::size_t roots = 0;
  std::vector<double> longest(parent_.size(), 0.0);
  for (int r = 0; r < static_cast<int>(programs_.size()); ++r)
    for (InstructionId id = 0; id < static_cast<InstructionId>(durations[static_cast<std::size_t>(r)].size());
         ++id) {
      const Node of = node(r, id);
      roots += root(of) == of;
      double& most = longest[static_cast<std::size_t>(root(of))];
      most = std::max(most, durations[static_cast<std::size_t>(r)][static_cast<std::size_t>(id)]);
    }
  if (sorted.size() < roots) return {};

  std::vector<double> start(parent_.size(), 0.0);
  for (const Node of : sorted) {
    const auto at = static_cast<std::size_t>(of);
    for (std::size_t edge = begin_[at]; edge < begin_[at + 1]; ++edge) {
      double& later = start[static_cast<std::size_t>(edges_[edge].after)];
      later = std::max(later, start[at] + longest[at] + (edges_[edge].wakes ? wake_us_ : 0.0));
    }
  }
  std::vector<std::vector<Times>> times(programs_.size());
  for (int r = 0; r < static_cast<int>(programs_.size()); ++r)
    for (InstructionId id = 0; id < static_cast<InstructionId>(durations[static_cast<std::size_t>(r)].size());
         ++id) {
      const auto at = static_cast<std::size_t>(root(node(r, id)));
      times[static_cast<std::size_t>(r)].push_back({start[at], start[at] + longest[at]});
    }
  return times;
}

}  // namespace tessera
