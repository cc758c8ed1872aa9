#include "src/simulate/simulate.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "tessera/error.h"

namespace tessera {

using Times = Dataflow::Times;

double outside(std::vector<Times> list, const std::vector<Times>& busy) {
  std::ranges::sort(list, {}, &Times::start_us);
  double total = 0, counted = 0;  // counted: up to when
  auto next = busy.begin();
  for (const Times& one : list) {
    double from = std::max(one.start_us, counted);
    while (next != busy.end() && next->end_us <= from) ++next;
    for (auto at = next; at != busy.end() && at->start_us < one.end_us && from < one.end_us; ++at) {
      total += std::max(0.0, at->start_us - from);
      from = std::max(from, at->end_us);
    }
    total += std::max(0.0, one.end_us - from);
    counted = std::max(counted, one.end_us);
  }
  return total;
}

void CostModel::check() const {
  const auto require = [](bool holds, const char* name, double value, const char* what) {
    if (!holds) throw UsageError(fmt::format("simulate: {} is {}; it must be {}", name, value, what));
  };
  const auto rate = [&](const char* name, double value) { require(value > 0, name, value, "above 0"); };
  const auto none_below = [&](const char* name, double value) {
    require(value >= 0 && std::isfinite(value), name, value, "0 or more, and finite");
  };
  rate("flops_per_us", flops_per_us);
  rate("memory_bytes_per_us", memory_bytes_per_us);
  rate("host_memory_bytes_per_us", host_memory_bytes_per_us);
  rate("host_link_bytes_per_us", host_link_bytes_per_us);
  rate("disk_bytes_per_us", disk_bytes_per_us);
  none_below("issue_us", issue_us);
  none_below("wake_us", wake_us);
  for (const double flops : forward_flops) none_below("forward_flops", flops);
  for (const double flops : recompute_flops) none_below("recompute_flops", flops);
  for (const IdVector<double>& of_unit : part_flops)
    for (const double flops : of_unit) none_below("part_flops", flops);
  cluster.check();
}

double Timeline::hidden() const {
  if (communication_us <= 0) return 1;
  return std::clamp(1 - exposed_us / communication_us, 0.0, 1.0);
}

IdVector<double> durations_of(const Program& program, const InstructionCosts& costs) {
  IdVector<double> durations;
  durations.reserve(program.instructions.size());
  for (const Instruction& instruction : program.instructions) durations.push_back(costs.us(instruction));
  return durations;
}

Timeline timeline_of(const Program& program, const InstructionCosts& costs, const IdVector<Times>& times,
                     Dataflow::Issuer issuer) {
  Timeline timeline;
  std::vector<Times> computing, communicating;
  timeline.spans.reserve(times.size());
  for (std::size_t k = 0; k < times.size(); ++k) {
    const Instruction& instruction = program.instructions[k];
    const auto& [start, end] = times[k];
    timeline.spans.push_back({.instruction = static_cast<InstructionId>(k),
                              .lane = instruction.lane,
                              .start_us = start,
                              .end_us = end});
    timeline.total_us = std::max(timeline.total_us, end);
    if (Dataflow::thread_of(instruction.lane, issuer) == Lane::compute) {
      timeline.compute_us += end - start;
      computing.push_back(times[k]);
    } else if (costs.overlaps_compute(instruction)) {
      timeline.communication_us += end - start;
      communicating.push_back(times[k]);
    }
  }
  timeline.exposed_us = outside(std::move(communicating), computing);
  return timeline;
}

Dataflow::Issuer issuer_of(const CostModel& cost, const Mesh& mesh) {
  if (!cost.compute_issues) return Dataflow::Issuer::runs_nothing;
  return mesh.world() == 1 ? Dataflow::Issuer::runs_all : Dataflow::Issuer::computes;
}

Timeline simulate(const Program& program, const Layout& layout, const Mesh& mesh, const CostModel& cost) {
  cost.check();
  const int rank = mesh.rank({program.pipeline_rank, 0, 0, 0});
  const InstructionCosts costs(program, layout, mesh, cost, rank);
  Dataflow flow({&program}, issuer_of(cost, mesh), cost.wake_us);
  const auto times = flow.run({durations_of(program, costs)});
  if (times.empty())
    throw UsageError("simulate: the program's instructions wait for each other; see verify()");
  return timeline_of(program, costs, times.front(), issuer_of(cost, mesh));
}

}  // namespace tessera
