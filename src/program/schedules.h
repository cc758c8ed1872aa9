// The pipeline schedules, a row each.
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "tessera/pipeline.h"

namespace tessera {

// A schedule is a row and a function, both in pipeline.cpp.
struct ScheduleRow {
  PipelineSchedule schedule;
  std::string_view name;  // in configurations
  bool several_chunks;    // whether a rank may have more than one
  bool splits_backward;   // whether weight gradients are passes of their own
  std::vector<ChunkPass> (*order)(const PipelineShape& shape, int rank);
};
std::span<const ScheduleRow> pipeline_schedules();

}  // namespace tessera
