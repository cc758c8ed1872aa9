// The instructions of several ranks as one graph of what has to be over before what, with those that meet
// merged into one node; when each runs, given how long it takes.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "tessera/program.h"

namespace tessera {

class Dataflow {
 public:
  // Who issues a rank's instructions also runs: none; those of the compute lane, so that nothing is issued
  // while it is busy; or, as a rank without peers does, all but moves and messages.
  enum class Issuer : std::uint8_t { runs_nothing, computes, runs_all };
  // The thread that runs a lane: the issuer is that of the compute lane.
  static Lane thread_of(Lane lane, Issuer issuer);

  // `programs[r]` is what the r-th rank runs; they must outlive it. Edges: the instruction before of those
  // that the same thread runs, what it waits for and, unless the issuer runs nothing, its last before it.
  // Behind one of another thread it begins `wake_us` after that is over.
  Dataflow(std::vector<const Program*> programs, Issuer issuer, double wake_us = 0);

  // Instruction x of rank r and y of rank s begin when both can, and end together.
  void merge(int r, InstructionId x, int s, InstructionId y);

  struct Times {
    double start_us = 0;
    double end_us = 0;
  };
  // By rank, then instruction. `durations` likewise; of merged ones the longest counts. Empty where there is
  // a circle.
  std::vector<std::vector<Times>> run(const std::vector<std::vector<double>>& durations);

 private:
  using Node = int;
  struct Edge {
    Node after = 0;  // a root
    bool wakes = false;
  };

  Node node(int r, InstructionId id) const { return first_[static_cast<std::size_t>(r)] + id; }
  Node root(Node of);
  // Calls visit(before, edge) for every edge.
  template <typename Visit>
  void each_edge(Visit visit);
  void find_edges();
  // Roots, each behind all that it comes after; fewer than there are where there is a circle.
  std::vector<Node> order();

  std::vector<const Program*> programs_;
  Issuer issuer_;
  double wake_us_;
  std::vector<Node> first_;         // by rank
  std::vector<Node> parent_;        // union-find
  std::vector<int> edges_into_;     // by root: their count
  std::vector<std::size_t> begin_;  // of each root's edges in edges_
  std::vector<Edge> edges_;
};

}  // namespace tessera
