#include "src/cli/memory_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

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

ArenaBytes arena_bytes(const MemoryPlan& plan) {
  ArenaBytes bytes = {};
  for (std::size_t space = 0; space < bytes.size(); ++space) bytes[space] = plan.spaces[space].arena_bytes;
  return bytes;
}

ArenaColumns::ArenaColumns(std::span<const ArenaBytes> lines) {
  for (const Space space : {Space::host, Space::disk})
    if (std::ranges::any_of(
            lines, [&](const ArenaBytes& bytes) { return bytes[static_cast<std::size_t>(space)] > 0; }))
      others_.push_back(space);
}

std::string ArenaColumns::heading() const {
  std::string text = fmt::format("{:>14}", "MiB a rank");
  for (const Space space : others_) text += fmt::format("{:>14}", fmt::format("on the {}", name_of(space)));
  return text;
}

std::string ArenaColumns::line(const ArenaBytes& bytes) const {
  const auto column = [&](Space space) {
    return fmt::format("{:>14.2f}", static_cast<double>(bytes[static_cast<std::size_t>(space)]) / (1 << 20));
  };
  std::string text = column(Space::device);
  for (const Space space : others_) text += column(space);
  return text;
}

void add_arenas(nlohmann::json& object, const ArenaBytes& bytes) {
  for (const auto& [key, space] : {std::pair{"arena_bytes", Space::device},
                                   {"host_arena_bytes", Space::host},
                                   {"disk_arena_bytes", Space::disk}})
    object[key] = bytes[static_cast<std::size_t>(space)];
}

RunPlans::RunPlans(const Setup& setup)
    : by_pipeline_rank(plan_pipeline(*setup.model, setup.options)),
      alone(plan_trainer(*setup.model, on_one_rank(setup.options))) {}

std::vector<Space> RunPlans::spaces() const {
  std::vector<Space> held;
  for (const Space space : {Space::device, Space::host, Space::disk})
    if (space == Space::device || most_bytes(space) > 0) held.push_back(space);
  return held;
}

std::string RunPlans::where_most(Space space) const {
  if (by_pipeline_rank.size() == 1) return {};
  return fmt::format(" on pipeline rank {}, where it is most", fullest(space));
}

std::string RunPlans::table() const {
  const std::string whose =
      by_pipeline_rank.size() > 1
          ? fmt::format("of pipeline rank {}, the fullest of the device:\n", fullest(Space::device))
          : std::string();
  return whose + memory_table(alone, of_fullest(Space::device));
}

nlohmann::json memory_json(const RunPlans& plans) {
  nlohmann::json result = {{"replicated", space_json(plans.alone.memory.space(Space::device))}};
  for (const auto& [key, space] : {std::pair{"predicted", Space::device},
                                   {"predicted_host", Space::host},
                                   {"predicted_disk", Space::disk}}) {
    result[key] = space_json(plans.most(space));
    result[key]["pipeline_rank"] = plans.fullest(space);
  }
  return result;
}

}  // namespace tessera::cli
