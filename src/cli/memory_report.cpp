#include "src/cli/memory_report.h"

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

nlohmann::json memory_json(const Setup& setup) {
  TrainerOptions alone = setup.options;
  alone.engine.mesh = {};
  alone.engine.strategy.placements = {};
  alone.engine.strategy.resident_units = 0;
  return {{"predicted", space_json(plan_trainer(*setup.model, setup.options).memory.space(Space::device))},
          {"replicated", space_json(plan_trainer(*setup.model, alone).memory.space(Space::device))}};
}

}  // namespace tessera::cli
