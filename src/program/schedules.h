// The pipeline schedules, a row each.
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "tessera/pipeline.h"

namespace tessera {

// A schedule is a row and a function, both in schedules.cpp.
struct ScheduleRow {
  PipelineSchedule schedule;
  std::string_view name;     // in configurations
  std::string_view meaning;  // there: a few words behind the name
  int chunks;                // each rank has so many; 0: as many as are asked for
  bool splits_backward;      // whether weight gradients are passes of their own
  // The rank that has chunk `chunk` of the chain. All ranks have equally many.
  int (*rank_of)(int chunk, int ranks);
  // `own`: the chunks of the rank, ascending.
  std::vector<ChunkPass> (*order)(const PipelineShape& shape, int rank, std::span<const int> own);

  // How many chunks a rank has where so many are asked for.
  int chunks_of(int asked) const { return chunks > 0 ? chunks : asked; }
};
std::span<const ScheduleRow> pipeline_schedules();
// Throws UsageError for a number that is no schedule.
const ScheduleRow& row_of(PipelineSchedule schedule);

}  // namespace tessera
