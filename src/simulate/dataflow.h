// The instructions of several ranks as one graph. An edge means that one instruction must end before the
// other begins; instructions that run together are one node. From durations it computes when each instruction
// runs.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "tessera/program.h"

namespace tessera {

class Dataflow {
 public:
  // Which instructions the thread that issues a rank's instructions also runs: none; those of the compute
  // lane, so that nothing is issued while that is busy; or, on a rank without peers, all lanes for which
  // joins_compute_alone() is true.
  enum class Issuer : std::uint8_t { runs_nothing, computes, runs_all };
  // The thread that runs a lane, named by a lane. The issuer is Lane::compute.
  static Lane thread_of(Lane lane, Issuer issuer);

  // `programs[r]` is the program of the r-th rank; it must outlive this object. An instruction begins after
  // the one before it on the same thread, after those that it waits for and, unless the issuer runs nothing,
  // after the issuer's last instruction before it. If the earlier instruction is another thread's, it begins
  // `wake_us` after that one's end.
  Dataflow(IdVector<const Program*> programs, Issuer issuer, double wake_us = 0);

  // Instruction x of rank r and instruction y of rank s begin when both can, and end together.
  void merge(int r, InstructionId x, int s, InstructionId y);

  struct Times {
    double start_us = 0;
    double end_us = 0;
  };
  // Times by rank, then instruction; `durations` likewise. For merged instructions the longest duration
  // counts. Empty if there is a cycle.
  IdVector<IdVector<Times>> run(const IdVector<IdVector<double>>& durations);

 private:
  using Node = int;
  struct Edge {
    Node after = 0;  // a root
    bool wakes = false;
  };

  Node node(int r, InstructionId id) const { return first_[r] + id; }
  Node root(Node of);
  // Calls visit(before, edge) for every edge.
  template <typename Visit>
  void each_edge(Visit visit);
  void find_edges();
  // The roots in topological order; fewer than there are if there is a cycle.
  std::vector<Node> order();

  IdVector<const Program*> programs_;
  Issuer issuer_;
  double wake_us_;
  IdVector<Node> first_;         // by rank
  IdVector<Node> parent_;        // union-find
  IdVector<int> edges_into_;     // by root: number of edges
  IdVector<std::size_t> begin_;  // start of each root's edges in edges_
  std::vector<Edge> edges_;
};

}  // namespace tessera
