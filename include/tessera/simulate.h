// Predicts the time of a step from its programs and a cost model, for one rank alone or for a whole mesh on a
// described cluster. Pure.
#pragma once

#include <iosfwd>
#include <span>
#include <string>
#include <vector>

#include "tessera/cost_model.h"
#include "tessera/id_vector.h"
#include "tessera/program.h"
#include "tessera/world_programs.h"

namespace tessera {

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
