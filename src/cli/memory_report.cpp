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
  const auto space = [&](const TrainerOptions& options) {
    const int rank = fullest_pipeline_rank(*setup.model, options);
    return space_json(plan_trainer(*setup.model, options, rank).memory.space(Space::device));
  };
  return {{"predicted", space(setup.options)}, {"replicated", space(on_one_rank(setup.options))}};
}

}  // namespace tessera::cli
