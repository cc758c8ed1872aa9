#include "src/program/schedules.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>
#include <map>

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

// ZB-V of Qi et al. (arXiv 2401.10241, 2405.15362). The chain runs down the ranks and back up, so rank s of p
// has chunks s and 2p − 1 − s. It takes them in turn, each pass as soon as its input can be there, and leaves
// the weight gradients of s microbatches of either chunk for the end. Where forward, backward and weight
// gradients take the same time and there are 2p − 1 microbatches or more, rank s waits for its first input
// and then no more: the step is p − 1 passes of a chunk longer than the passes of a rank. A rank holds at
// most 2p microbatches of a chunk, which is half of its units: as much as 1F1B on its first rank.
//
// This is the V schedule that waits the least for that memory. V-Half and V-Min (2405.15362) hold less and
// wait longer. DualPipe-V, one half of DualPipe, runs a forward at the same time as a backward in order to
// hide messages between experts: nothing is gained by it where passes run one after the other. With unequal
// passes the order is the same, and ranks wait for the differences.
//
// With few microbatches, those of 2p − 1 that do not exist are left out, as above.
Order zero_bubble_v(const PipelineShape& shape, int rank, OwnChunks own) {
  using enum Pass;
  struct Stretch {
    int times;
    std::vector<std::pair<int, Pass>> passes;  // chunk and pass, each of the microbatch that comes next
  };
  const int p = shape.ranks, down = own.front(), up = own.back();
  const int full = std::max(shape.microbatches, 2 * p - 1);
  const Stretch stretches[] = {
      {2 * (p - rank) - 1, {{down, forward}}},
      {rank, {{up, forward}, {down, forward}}},
      {p - rank, {{up, forward}, {up, backward}, {up, weight_gradient}}},
      {full - p,
       {{down, forward},
        {down, backward},
        {down, weight_gradient},
        {up, forward},
        {up, backward},
        {up, weight_gradient}}},
      {rank, {{down, backward}, {up, backward}}},
      {p - rank, {{down, backward}, {down, weight_gradient}}},
      {rank, {{up, weight_gradient}}},
      {rank, {{down, weight_gradient}}},
  };
  Order order;
  std::map<std::pair<int, Pass>, int> next;
  for (const Stretch& stretch : stretches)
    for (int time = 0; time < stretch.times; ++time)
      for (const auto& [chunk, pass] : stretch.passes)
        if (const int microbatch = next[{chunk, pass}]++; microbatch < shape.microbatches)
          order.push_back({.chunk = chunk, .microbatch = microbatch, .pass = pass});
  return order;
}

// The chain goes round the ranks: a chunk's neighbours are on neighbouring ranks.
int round(int chunk, int ranks) { return chunk % ranks; }
// It goes down the ranks, turns on the last, and comes back.
int down_and_up(int chunk, int ranks) { return chunk < ranks ? chunk : 2 * ranks - 1 - chunk; }

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
    {PipelineSchedule::zb_v, "zb_v", "zb_h1 over two chunks a rank, the first and the last on one rank", 2,
     true, down_and_up, zero_bubble_v},
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
