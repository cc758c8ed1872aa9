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
  std::string_view name;  // in configurations
  bool several_chunks;    // whether a rank may have more than one
  bool splits_backward;   // whether weight gradients are passes of their own
  std::vector<ChunkPass> (*order)(const PipelineShape& shape, int rank);
};
std::span<const ScheduleRow> pipeline_schedules();
// Throws UsageError for a number that is no schedule.
const ScheduleRow& row_of(PipelineSchedule schedule);

}  // namespace tessera
