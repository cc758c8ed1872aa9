// Predicts the time of a step from its programs and a cost model, for one rank alone or for a whole mesh on a
// described cluster. Pure.
#pragma once

#include <functional>
#include <iosfwd>
#include <span>
#include <string>
#include <vector>

#include "tessera/cluster.h"
#include "tessera/id_vector.h"
#include "tessera/program.h"
#include "tessera/world_programs.h"

namespace tessera {

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

// When an instruction ran on its lane, simulated or measured; µs from the begin of the step.
struct TraceSpan {
  InstructionId instruction = 0;
  Lane lane = Lane::compute;
  double start_us = 0;
  double end_us = 0;
};

// One rank's step.
struct Timeline {
  std::vector<TraceSpan> spans = {};  // in order of issue
  double total_us = 0;                // when the last instruction ends
  double compute_us = 0;              // sum over the compute lane and other instructions that its thread runs
  double communication_us = 0;  // sum over collectives and messages with other ranks, off the compute lane
  double exposed_us = 0;        // time in which such communication runs and the compute lane runs nothing
  // Time in which the compute lane runs nothing: exposed communication, and waits for other ranks.
  double idle_us() const { return total_us - compute_us; }
  // 1 − exposed / communication, within [0, 1]; 1 without communication.
  double hidden() const;
};

// Simulates one rank by itself, as if its peers kept step with it. Each lane runs in order. An instruction
// starts once it is issued, its lane is free and its waits are over; messages wait for nobody. The rank is
// the first of the mesh at its program's place along the pipeline axis. Throws UsageError if layout or cost
// model do not fit the program.
Timeline simulate(const Program& program, const Layout& layout, const Mesh& mesh, const CostModel& cost);

// A set of ranks with equal timelines, represented by the first of them.
struct RankTimeline {
  int program = 0;  // index into WorldPrograms::programs
  int rank = 0;     // the first of the set
  int ranks = 1;    // how many are in the set
  Timeline timeline;
  double passes_us = 0;  // time of the compute lane in forward, recompute and backward
};

struct WorldTimeline {
  std::vector<RankTimeline> ranks;  // ordered by their first rank
  double total_us = 0;              // when the step ends on the last rank
  // passes_span_us is the time from the first forward to the last backward on any rank. bubble is the share
  // of all ranks' time in that span in which no pass runs: 1 − Σ passes_us / (ranks × span). bubble is 0 if
  // no pass takes time.
  double passes_span_us = 0;
  double bubble = 0;
  double exposed_us = 0;   // exposed communication, mean over ranks
  double utilisation = 0;  // share of all ranks' time in the step in which a pass runs
};

// Simulates all ranks together. Each rank runs as above. A collective begins when all its members have
// reached it, and a send and its receive when both ranks have. It ends at the same time on all of them.
// Throws UsageError if programs, layout, mesh or cost model do not fit each other, or if the programs'
// collectives or messages do not match or wait for each other in a cycle (see verify()).
WorldTimeline simulate(const WorldPrograms& world, const Layout& layout, const CostModel& cost);

// Chrome-trace JSON (chrome://tracing, Perfetto): one row per lane.
void write_chrome_trace(std::ostream& out, const Program& program, std::span<const TraceSpan> spans,
                        int rank);
// The same for a world: one process for each program, numbered by its pipeline rank, which shows the
// program's first rank.
void write_chrome_trace(std::ostream& out, IdSpan<const Program> programs, const WorldTimeline& world);

}  // namespace tessera
