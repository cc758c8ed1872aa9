// Predicts the time of a step from its programs and a cost model: of one rank alone, or of a whole mesh on a
// described cluster. Pure.
#pragma once

#include <functional>
#include <iosfwd>
#include <span>
#include <string>
#include <vector>

#include "tessera/cluster.h"
#include "tessera/program.h"
#include "tessera/world_programs.h"

namespace tessera {

struct CostModel {
  double flops_per_us = 100e3;             // what modules reach
  double memory_bytes_per_us = 20e3;       // optimizer, casts and sums: bytes read plus bytes written
  double host_memory_bytes_per_us = 20e3;  // the same on the host, where it updates
  double host_link_bytes_per_us = 25e3;    // copies between device and host, each way
  double disk_bytes_per_us = 2e3;          // reading and writing
  Cluster cluster = {};                    // what collectives and messages take
  double issue_us = 0.0;                   // fixed cost of any instruction
  double wake_us = 0.0;  // until a lane goes on behind what it waited for in another: a thread's wake-up
  // Whether the thread that issues also computes, as on the CPU: nothing is issued while the compute lane is
  // busy, so a gather starts no sooner than the strategy's prefetch says. On a device the host runs ahead,
  // and only waits hold a gather back. A rank without peers, which has nothing to hide, then does all but
  // copies and what the host updates by that one thread.
  bool compute_issues = true;
  std::vector<double> forward_flops = {};  // by unit, one microbatch; backward is twice that
  // What a full recompute repeats of them; empty: all. A selective one repeats none: it takes the time that
  // what it makes takes to be written, and as much to be read.
  std::vector<double> recompute_flops = {};
  // Overrides everything above where it returns a value of 0 or more: the duration in µs. Where the members
  // of a collective, or the two ends of a message, are given different ones, the longest counts.
  std::function<double(const Program&, const Instruction&)> duration_us = {};

  // UsageError for a rate that is not above 0, a duration or a count of operations that is below 0 or not
  // finite, or a cluster that is none.
  void check() const;
};

struct Span {
  InstructionId instruction = 0;
  Lane lane = Lane::compute;
  double start_us = 0;
  double end_us = 0;
};

// One rank's step.
struct Timeline {
  std::vector<Span> spans = {};  // in order of issue
  double total_us = 0;           // when its last instruction ends
  double compute_us = 0;         // sum over the compute lane, and over what else its thread runs
  double communication_us = 0;   // sum over collectives and messages with other ranks off the compute lane
  double exposed_us = 0;         // time in which the compute lane has nothing to run and such a one runs
  // Time in which the compute lane runs nothing: exposed communication, and waiting for other ranks.
  double idle_us() const { return total_us - compute_us; }
  // 1 − exposed / communication, within [0, 1]; 1 where there is no communication.
  double hidden() const;
};

// One rank by itself, as if its peers kept step with it: each lane in order, an instruction once it is
// issued, its lane is free and its waits are over; messages wait for nobody. It is the first rank of the
// mesh at its program's place along the pipeline axis. Throws UsageError where layout or cost model do not
// fit the program.
Timeline simulate(const Program& program, const Layout& layout, const Mesh& mesh, const CostModel& cost);

// A set of ranks whose steps are alike, told by the first of them.
struct RankTimeline {
  int program = 0;  // index into WorldPrograms::programs
  int rank = 0;     // the first
  int ranks = 1;    // how many
  Timeline timeline;
  double passes_us = 0;  // of the compute lane: in forward, recompute and backward
};

struct WorldTimeline {
  std::vector<RankTimeline> ranks;  // ordered by their first rank
  double total_us = 0;              // the step, on the rank that ends last
  // From the first forward to the last backward on any rank; their share of all ranks' time in it that no
  // pass runs: 1 − Σ passes_us / (ranks × span). 0 where no pass takes time.
  double passes_span_us = 0;
  double bubble = 0;
  double exposed_us = 0;   // communication, mean over ranks
  double utilisation = 0;  // share of all ranks' time in the step in which a pass runs
};

// All ranks' programs at once, in step with each other where they meet: on each rank as above, a collective
// begins when all its members have come to it, a send and its receive when both are there, and all ends
// together. Throws UsageError where programs, layout, mesh or cost model do not fit each other, and where
// the programs' collectives or messages do not meet or wait for each other in a circle (see verify()).
WorldTimeline simulate(const WorldPrograms& world, const Layout& layout, const CostModel& cost);

// Chrome-trace JSON (chrome://tracing, Perfetto): one row per lane.
void write_chrome_trace(std::ostream& out, const Program& program, std::span<const Span> spans, int rank);
// The same of a world: a process for each program, numbered by its pipeline rank, of its first rank.
void write_chrome_trace(std::ostream& out, std::span<const Program> programs, const WorldTimeline& world);

}  // namespace tessera
