#include "src/cli/memory_report.h"

#include <fmt/format.h>

#include <algorithm>

namespace tessera::cli {

namespace {

nlohmann::json space_json(const SpacePlan& space) {
  nlohmann::json categories = nlohmann::json::object();
  for (int category = 0; category < kCategories; ++category)
    categories[std::string(name_of(static_cast<Category>(category)))] =
        space.at_peak[static_cast<std::size_t>(category)];
  return {{"categories", std::move(categories)},
          {"arena_bytes", space.arena_bytes},
          {"live_peak_bytes", space.live_peak_bytes},
          {"persistent_bytes", space.persistent_bytes}};
}

}  // namespace

RunPlans::RunPlans(const Setup& setup)
    : by_pipeline_rank(plan_pipeline(*setup.model, setup.options)),
      fullest(fullest_pipeline_rank(by_pipeline_rank)),
      alone(plan_trainer(*setup.model, on_one_rank(setup.options))) {}

std::int64_t RunPlans::most_bytes(Space space) const {
  std::int64_t most = 0;
  for (const TrainerPlan& plan : by_pipeline_rank)
    most = std::max(most, plan.memory.space(space).arena_bytes);
  return most;
}

std::string RunPlans::table() const {
  const std::string whose = by_pipeline_rank.size() > 1
                                ? fmt::format("of pipeline rank {}, the fullest:\n", fullest)
                                : std::string();
  return whose + memory_table(alone, of_fullest());
}

nlohmann::json memory_json(const RunPlans& plans) {
  const MemoryPlan& memory = plans.of_fullest().memory;
  return {{"predicted", space_json(memory.space(Space::device))},
          {"predicted_host", space_json(memory.space(Space::host))},
          {"predicted_disk", space_json(memory.space(Space::disk))},
          {"replicated", space_json(plans.alone.memory.space(Space::device))}};
}

}  // namespace tessera::cli
