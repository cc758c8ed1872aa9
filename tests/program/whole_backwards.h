// Schedules for units whose backward is one part, as those of an embedder.
#pragma once

#include <vector>

#include "src/program/schedules.h"

namespace tessera::testing {

inline std::vector<ScheduleRow> schedules_of_whole_backwards() {
  std::vector<ScheduleRow> rows;
  for (const ScheduleRow& row : pipeline_schedules())
    if (!row.splits_backward) rows.push_back(row);
  return rows;
}

}  // namespace tessera::testing
