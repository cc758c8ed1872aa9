// The rates and costs by which the time of a step is predicted. Plain data; tessera/simulate.h predicts.
#pragma once

#include <functional>

#include "tessera/cluster.h"
#include "tessera/id_vector.h"

namespace tessera {

struct Instruction;
struct Program;

struct CostModel {
  double flops_per_us = 100e3;             // rate that modules reach
  double memory_bytes_per_us = 20e3;       // for optimizer, casts and sums; bytes read plus bytes written
  double host_memory_bytes_per_us = 20e3;  // the same on the host, for its updates
  double host_link_bytes_per_us = 25e3;    // for copies between device and host, in each direction
  double disk_bytes_per_us = 2e3;          // for reading and for writing
  Cluster cluster = {};                    // times of collectives and messages
  double issue_us = 0.0;                   // fixed cost of any instruction
  double wake_us = 0.0;  // from the end of an instruction until a lane that waited for it goes on: a thread's
                         // wake-up
  // Whether the thread that issues instructions also computes, as on the CPU. Then nothing is issued while
  // the compute lane is busy, so a gather starts no earlier than the strategy's prefetch says. A rank without
  // peers then runs everything but copies and host updates on that one thread. If false, as on a GPU, the
  // host runs ahead, and only waits hold a gather back.
  bool compute_issues = true;
  IdVector<double> forward_flops = {};  // by unit, for one microbatch; backward is twice that
  // The part of forward_flops that a full recompute repeats, by unit; empty: all. A selective recompute
  // repeats none: it takes the time to write its results, and the same time again to read.
  IdVector<double> recompute_flops = {};
  // By unit and part (PartSpec::flops); in place of both where it is given. A part without any takes no time
  // or, in a recompute, that of its results.
  IdVector<IdVector<double>> part_flops = {};
  // Returns an instruction's duration in µs, which overrides everything above; a value below 0 overrides
  // nothing. If the members of a collective, or the two ends of a message, get different durations, the
  // longest counts.
  std::function<double(const Program&, const Instruction&)> duration_us = {};

  bool has_flops() const { return !forward_flops.empty() || !part_flops.empty(); }
  // Throws UsageError for a rate that is not above 0, a duration or number of operations that is below 0 or
  // not finite, or a cluster that Cluster::check() refuses.
  void check() const;
};

}  // namespace tessera
