#include "src/program/schedules.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>

namespace tessera {
namespace {

using Order = std::vector<ChunkPass>;
using OwnChunks = std::span<const int>;

// All forwards and all backwards of one rank, each kind in the order it takes them, woven: `ahead` forwards
// first, then one backward behind each forward, then the backwards that are left.
Order weave(const Order& forwards, const Order& backwards, std::size_t ahead) {
  Order order;
  std::size_t backward = 0;
  for (std::size_t forward = 0; forward < forwards.size(); ++forward) {
    order.push_back(forwards[forward]);
    if (forward >= ahead) order.push_back(backwards[backward++]);
  }
  for (; backward < backwards.size(); ++backward) order.push_back(backwards[backward]);
  return order;
}

// Microbatches by groups of `group`; within a group each of the rank's chunks takes all of it before the next
// chunk does.
Order passes(OwnChunks own, Pass pass, int microbatches, int group) {
  std::vector<int> chunks(own.begin(), own.end());
  if (pass == Pass::backward) std::ranges::reverse(chunks);
  Order order;
  for (int first = 0; first < microbatches; first += group)
    for (const int chunk : chunks)
      for (int microbatch = first; microbatch < std::min(first + group, microbatches); ++microbatch)
        order.push_back({.chunk = chunk, .microbatch = microbatch, .pass = pass});
  return order;
}

Order all_forward_first(const PipelineShape& shape, int /*rank*/, OwnChunks own) {
  const int m = shape.microbatches;
  return weave(passes(own, Pass::forward, m, m), passes(own, Pass::backward, m, m),
               std::numeric_limits<std::size_t>::max());
}

// With one chunk a rank, the forwards ahead fill the pipeline once. With several, microbatches go in groups
// of as many as ranks: when a group's last is through a rank's chunk, its first has come round to the next.
// The forwards ahead fill both ways of the pipeline and all chunks but one. A last group that is not full is
// made as if it were, and what does not exist left out: leaving out makes no cycle.
Order one_forward_one_backward(const PipelineShape& shape, int rank, OwnChunks own) {
  const int p = shape.ranks;
  const int full = round_up(shape.microbatches, p);
  const int ahead = shape.chunks == 1 ? p - 1 - rank : 2 * (p - 1 - rank) + (shape.chunks - 1) * p;
  Order order = weave(passes(own, Pass::forward, full, p), passes(own, Pass::backward, full, p),
                      static_cast<std::size_t>(ahead));
  std::erase_if(order, [&](const ChunkPass& pass) { return pass.microbatch >= shape.microbatches; });
  return order;
}

// 1F1B in which rank s leaves the weight gradients of s microbatches for later: they fill the time in which
// it would wait for backwards at the end. It so holds what microbatches need of at most p, as 1F1B does on
// its first rank. ZB-H1 of Qi et al. 2023 (arXiv 2401.10241).
Order zero_bubble(const PipelineShape& shape, int rank, OwnChunks own) {
  Order order;
  int next = 0;  // whose weight gradients come next
  const auto weight_gradient = [&] {
    order.push_back({.chunk = own.front(), .microbatch = next++, .pass = Pass::weight_gradient});
  };
  for (const ChunkPass& pass : one_forward_one_backward(shape, rank, own)) {
    order.push_back(pass);
    if (pass.pass == Pass::backward && pass.microbatch >= rank) weight_gradient();
  }
  while (next < shape.microbatches) weight_gradient();
  return order;
}

// The chain goes round the ranks: a chunk's neighbours are on neighbouring ranks.
int round(int chunk, int ranks) { return chunk % ranks; }

constexpr auto kSchedules = std::to_array<ScheduleRow>({
    {PipelineSchedule::one_forward_one_backward, "1f1b", "one forward, then one backward, in turn", 1, false,
     round, one_forward_one_backward},
    {PipelineSchedule::gpipe, "gpipe", "all forwards, then all backwards", 1, false, round,
     all_forward_first},
    {PipelineSchedule::interleaved, "interleaved", "1f1b over any number of chunks a rank", 0, false, round,
     one_forward_one_backward},
    {PipelineSchedule::looped, "looped", "gpipe over any number of chunks a rank, one after the other", 0,
     false, round, all_forward_first},
    {PipelineSchedule::zb_h1, "zb_h1", "1f1b with the gradients of weights where ranks would wait", 1, true,
     round, zero_bubble},
});

}  // namespace

std::span<const ScheduleRow> pipeline_schedules() { return kSchedules; }

const ScheduleRow& row_of(PipelineSchedule schedule) {
  for (const ScheduleRow& row : kSchedules)
    if (row.schedule == schedule) return row;
  throw UsageError(fmt::format("pipeline.schedule is {}, which is none", static_cast<int>(schedule)));
}

std::string_view name_of(PipelineSchedule schedule) { return row_of(schedule).name; }
std::string_view meaning_of(PipelineSchedule schedule) { return row_of(schedule).meaning; }
bool splits_backward(PipelineSchedule schedule) { return row_of(schedule).splits_backward; }

std::vector<std::string_view> pipeline_schedule_names() {
  std::vector<std::string_view> names(kSchedules.size());
  std::ranges::transform(kSchedules, names.begin(), &ScheduleRow::name);
  return names;
}

std::optional<PipelineSchedule> pipeline_schedule_named(std::string_view name) {
  for (const ScheduleRow& row : kSchedules)
    if (row.name == name) return row.schedule;
  return std::nullopt;
}

std::vector<ChunkPass> pipeline_order(PipelineSchedule schedule, const PipelineShape& shape, int rank) {
  const ScheduleRow& row = row_of(schedule);
  if (shape.ranks < 1 || shape.chunks < 1 || shape.microbatches < 1 || rank < 0 || rank >= shape.ranks ||
      row.chunks_of(shape.chunks) != shape.chunks)
    throw UsageError(fmt::format("pipeline_order: {} with {} ranks, {} chunks, {} microbatches, on rank {}",
                                 row.name, shape.ranks, shape.chunks, shape.microbatches, rank));
  std::vector<int> own;
  for (int chunk = 0; chunk < shape.ranks * shape.chunks; ++chunk)
    if (row.rank_of(chunk, shape.ranks) == rank) own.push_back(chunk);
  return row.order(shape, rank, own);
}

}  // namespace tessera
