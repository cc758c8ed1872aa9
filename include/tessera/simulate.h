// Predicts the time of a step from its program and a simple cost model. Pure.
#pragma once

#include <functional>
#include <iosfwd>
#include <span>
#include <string>
#include <vector>

#include "tessera/program.h"

namespace tessera {

// A link: a message of n bytes takes alpha_us + n / bytes_per_us.
struct LinkCost {
  double alpha_us = 5.0;
  double bytes_per_us = 10e3;
};

struct CostModel {
  double flops_per_us = 100e3;        // what modules reach
  double memory_bytes_per_us = 20e3;  // optimizer, casts and sums: bytes read plus bytes written
  LinkCost link = {};                 // between any two ranks of a group
  double issue_us = 0.0;              // fixed cost of any instruction
  // Whether the thread that issues also computes, as on the CPU: nothing is issued while the compute lane is
  // busy, so a gather starts no sooner than the strategy's prefetch says. On a device the host runs ahead,
  // and only waits hold a gather back.
  bool compute_issues = true;
  std::vector<double> forward_flops = {};  // by unit, one microbatch; backward is twice that, recompute once
  // Overrides everything above where it returns a value of 0 or more: the duration in µs.
  std::function<double(const Program&, const Instruction&)> duration_us = {};
};

struct Span {
  InstructionId instruction = 0;
  Lane lane = Lane::compute;
  double start_us = 0;
  double end_us = 0;
};

struct Timeline {
  std::vector<Span> spans = {};  // in order of issue
  double total_us = 0;
  double compute_us = 0;        // sum over the compute lane
  double communication_us = 0;  // sum over collectives off the compute lane
  double exposed_us = 0;        // time the compute lane waited for communication: total − compute lane busy
  // 1 − exposed / communication, within [0, 1]; 1 where there is no communication.
  double hidden() const;
};

// All ranks of the group run `program` in lock-step: each lane in order, an instruction once it is issued,
// its lane is free and its waits are over. A collective over N ranks is a ring: N−1 messages of 1/N of the
// full buffer each. Throws UsageError where layout or cost model do not fit the program.
Timeline simulate(const Program& program, const Layout& layout, const Mesh& mesh, const CostModel& cost);

// Chrome-trace JSON (chrome://tracing, Perfetto): one row per lane.
void write_chrome_trace(std::ostream& out, const Program& program, std::span<const Span> spans, int rank);

}  // namespace tessera
