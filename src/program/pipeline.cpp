#include "tessera/pipeline.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <limits>

#include "src/program/schedules.h"

namespace tessera {
namespace {

std::vector<int> equal_cuts(int units, int chunks) {
  std::vector<int> cuts;
  for (int chunk = 1; chunk < chunks; ++chunk)
    cuts.push_back(static_cast<int>(std::int64_t{units} * chunk / chunks));
  return cuts;
}

void check_alone(const Pipeline& options) {
  if (options == Pipeline{}) return;
  throw UsageError(
      "pipeline.schedule, chunks, cuts or gather_once are set, but mesh.pipeline is 1: there is nothing to "
      "cut; leave "
      "them, or make mesh.pipeline 2 or more");
}

std::vector<int> checked_cuts(int units, int chunks, const Pipeline& options) {
  if (options.cuts.empty()) return equal_cuts(units, chunks);
  if (static_cast<int>(options.cuts.size()) != chunks - 1)
    throw UsageError(
        fmt::format("pipeline.cuts has {} cuts; {} chunks need {}", options.cuts.size(), chunks, chunks - 1));
  int last = 0;
  for (const int cut : options.cuts) {
    if (cut <= last || cut >= units)
      throw UsageError(fmt::format(
          "pipeline.cuts is [{}]; cuts must ascend, each the first unit of a chunk, within 1 to {}",
          fmt::join(options.cuts, ", "), units - 1));
    last = cut;
  }
  return options.cuts;
}

}  // namespace

Partition::Partition(int units, int pipeline, const Pipeline& options) : ranks_(pipeline) {
  if (pipeline == 1) check_alone(options);
  if (options.chunks < 1)
    throw UsageError(fmt::format("pipeline.chunks is {}; it must be at least 1", options.chunks));
  const ScheduleRow& schedule = row_of(options.schedule);
  if (schedule.chunks_of(options.chunks) != options.chunks)
    throw UsageError(fmt::format("pipeline.chunks is {}, but schedule {} has {} on each rank", options.chunks,
                                 schedule.name,
                                 schedule.chunks == 1 ? "one chunk" : fmt::format("{}", schedule.chunks)));
  const std::int64_t wanted = std::int64_t{pipeline} * options.chunks;
  if (wanted > units)
    throw UsageError(
        fmt::format("mesh.pipeline {} with {} chunk{} a rank cuts the chain into {}, but it has {} "
                    "units; each chunk takes at least one",
                    pipeline, options.chunks, options.chunks == 1 ? "" : "s", wanted, units));
  const auto chunks = static_cast<int>(wanted);
  IdVector<int> bounds = checked_cuts(units, chunks, options);
  bounds.push_back(units);
  int first = 0;
  for (int chunk = 0; chunk < chunks; ++chunk) {
    const int end = bounds[chunk];
    chunks_.push_back({.first = first, .end = end, .rank = schedule.rank_of(chunk, pipeline)});
    chunk_of_.insert(chunk_of_.end(), static_cast<std::size_t>(end - first), chunk);
    first = end;
  }
}

// best[u] is the least cost of the dearest chunk when the first u units make `made` chunks.
std::vector<int> balanced_cuts(std::span<const double> cost, int chunks, std::span<const double> bytes,
                               double most_bytes) {
  const std::size_t units = cost.size();
  if (!bytes.empty() && bytes.size() != units)
    throw UsageError(fmt::format("balanced_cuts: costs of {} units, but bytes of {}", units, bytes.size()));
  if (chunks < 1 || static_cast<std::size_t>(chunks) > units)
    throw UsageError(fmt::format("balanced_cuts: {} units cannot make {} chunks", units, chunks));
  constexpr double kNever = std::numeric_limits<double>::infinity();
  std::vector<double> best(units + 1, kNever);
  best[0] = 0;
  std::vector<std::vector<std::size_t>> begins(static_cast<std::size_t>(chunks),
                                               std::vector<std::size_t>(units + 1));
  for (auto& begin : begins) {
    std::vector<double> next(units + 1, kNever);
    for (std::size_t end = 1; end <= units; ++end) {
      double sum = 0, held = 0;
      for (std::size_t first = end; first-- > 0;) {
        sum += cost[first];
        held += bytes.empty() ? 0.0 : bytes[first];
        if (!bytes.empty() && held > most_bytes) break;
        const double dearest = std::max(best[first], sum);
        if (dearest >= next[end]) continue;
        next[end] = dearest;
        begin[end] = first;
      }
    }
    best = std::move(next);
  }
  if (best[units] == kNever) return {};
  std::vector<int> cuts;
  std::size_t end = units;
  for (std::size_t chunk = begins.size(); chunk-- > 1;) {
    end = begins[chunk][end];
    cuts.push_back(static_cast<int>(end));
  }
  std::ranges::reverse(cuts);
  return cuts;
}

}  // namespace tessera
