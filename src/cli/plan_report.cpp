#include "src/cli/plan_report.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>
#include <numeric>
#include <utility>

#include "src/cli/output.h"
#include "tessera/pipeline.h"

namespace tessera::cli {

namespace {

nlohmann::json space_json(const SpacePlan& space) {
  nlohmann::json categories = nlohmann::json::object();
  for (int category = 0; category < kCategories; ++category)
    categories[std::string(name_of(static_cast<Category>(category)))] = space.at_peak[category];
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
    if (std::ranges::any_of(lines, [&](const ArenaBytes& bytes) { return bytes[space] > 0; }))
      others_.push_back(space);
}

std::string ArenaColumns::heading() const {
  std::string text = fmt::format("{:>14}", "MiB a rank");
  for (const Space space : others_) text += fmt::format("{:>14}", fmt::format("on the {}", name_of(space)));
  return text;
}

std::string ArenaColumns::line(const ArenaBytes& bytes) const {
  const auto column = [&](Space space) {
    return fmt::format("{:>14.2f}", static_cast<double>(bytes[space]) / (1 << 20));
  };
  std::string text = column(Space::device);
  for (const Space space : others_) text += column(space);
  return text;
}

void add_arenas(nlohmann::json& object, const ArenaBytes& bytes) {
  for (const auto& [key, space] : {std::pair{"arena_bytes", Space::device},
                                   {"host_arena_bytes", Space::host},
                                   {"disk_arena_bytes", Space::disk}})
    object[key] = bytes[space];
}

RunPlans::RunPlans(const Setup& setup)
    : mesh(setup.options.engine.mesh),
      of_ranks(plan_pipeline(*setup.model, setup.options)),
      alone(plan_trainer(*setup.model, on_one_rank(setup.options))) {}

std::vector<Space> RunPlans::spaces() const {
  std::vector<Space> held;
  for (const Space space : {Space::device, Space::host, Space::disk})
    if (space == Space::device || most_bytes(space) > 0) held.push_back(space);
  return held;
}

std::int64_t RunPlans::bytes_of_all(Space space) const {
  std::int64_t bytes = 0;
  for (std::size_t plan = 0; plan < of_ranks.size(); ++plan)
    bytes += of_ranks[plan].memory.space(space).arena_bytes *
             (end_of_data_ranks(plan) - of_ranks[plan].first_data_rank) * mesh.replicate * mesh.tensor;
  return bytes;
}

// Behind the last place along the shard axis that has the plan.
int RunPlans::end_of_data_ranks(std::size_t plan) const {
  const std::size_t next = plan + static_cast<std::size_t>(mesh.pipeline);
  return next < of_ranks.size() ? of_ranks[next].first_data_rank : mesh.shard;
}

std::string RunPlans::data_ranks(std::size_t plan) const {
  const int first = of_ranks[plan].first_data_rank, last = end_of_data_ranks(plan) - 1;
  return fmt::format("{} rank{}{}", mesh.replicate > 1 ? "shard" : "data",
                     first == last ? fmt::format(" {}", first) : fmt::format("s {} to {}", first, last),
                     first > 0 ? ", resting in the last round" : "");
}

std::string RunPlans::whose(int plan) const {
  const bool pipelined = mesh.pipeline > 1, some_rest = of_ranks.back().first_data_rank > 0;
  return fmt::format("{}{}{}", pipelined ? fmt::format("pipeline rank {}", plan % mesh.pipeline) : "",
                     pipelined && some_rest ? " of " : "",
                     some_rest ? data_ranks(static_cast<std::size_t>(plan)) : "");
}

std::string RunPlans::where_most(Space space) const {
  if (of_ranks.size() == 1) return {};
  return fmt::format(" on {}, where it is most", whose(fullest(space)));
}

std::string RunPlans::other_ranks(Space space) const {
  const auto pipeline = static_cast<std::size_t>(mesh.pipeline);
  std::string text;
  for (std::size_t first = 0; first < of_ranks.size(); first += pipeline) {
    const IdSpan<const TrainerPlan> some = std::span(of_ranks).subspan(first, pipeline);
    const std::int64_t bytes = some[fullest_plan(some, space)].memory.space(space).arena_bytes;
    if (bytes == most_bytes(space)) continue;
    text += fmt::format("          of {}: {} bytes at most\n", data_ranks(first), count(bytes));
  }
  return text;
}

std::string RunPlans::table() const {
  const std::string of =
      of_ranks.size() > 1 ? fmt::format("of {}, the fullest of the device:\n", whose(fullest(Space::device)))
                          : std::string();
  return of + memory_table(alone, of_fullest(Space::device));
}

nlohmann::json memory_json(const RunPlans& plans) {
  nlohmann::json result = {{"replicated", space_json(plans.alone.memory.space(Space::device))}};
  for (const auto& [key, space] : {std::pair{"predicted", Space::device},
                                   {"predicted_host", Space::host},
                                   {"predicted_disk", Space::disk}}) {
    result[key] = space_json(plans.most(space));
    result[key]["pipeline_rank"] = plans.fullest(space) % plans.mesh.pipeline;
    result[key]["first_data_rank"] = plans.of_fullest(space).first_data_rank;
  }
  return result;
}

namespace {

// What one pipeline rank has.
struct Row {
  std::vector<std::string> chunks;         // "embed to block.2"
  std::vector<std::vector<int>> replicas;  // ranks of each
  ArenaBytes bytes = {};                   // of one rank
};

// The ranks of one replica on a pipeline rank: they follow each other.
std::vector<int> ranks_of(const Mesh& mesh, int pipeline_rank, int replica) {
  std::vector<int> ranks(static_cast<std::size_t>(mesh.shard) * static_cast<std::size_t>(mesh.tensor));
  std::iota(ranks.begin(), ranks.end(), mesh.rank({pipeline_rank, replica, 0, 0}));
  return ranks;
}

IdVector<Row> rows_of(const Setup& setup, std::span<const TrainerPlan> plans) {
  const Mesh& mesh = setup.options.engine.mesh;
  const IdVector<std::string>& names = setup.model->names;
  const Partition partition(names.count(), mesh.pipeline, setup.options.engine.strategy.pipeline);
  IdVector<Row> rows(mesh.pipeline);
  for (const Chunk& chunk : partition.chunks()) {
    const std::string& first = names[chunk.first];
    const std::string& last = names[chunk.end - 1];
    rows[chunk.rank].chunks.push_back(first == last ? first : fmt::format("{} to {}", first, last));
  }
  for (int rank = 0; rank < mesh.pipeline; ++rank) {
    Row& row = rows[rank];
    for (std::size_t plan = static_cast<std::size_t>(rank); plan < plans.size(); plan += rows.size())
      for (std::size_t space = 0; space < row.bytes.size(); ++space)
        row.bytes[space] = std::max(row.bytes[space], arena_bytes(plans[plan].memory)[space]);
    for (int replica = 0; replica < mesh.replicate; ++replica)
      row.replicas.push_back(ranks_of(mesh, rank, replica));
  }
  return rows;
}

constexpr int kMostColumns = 8;  // of ranks, one for each replica

// The row's columns of ranks: where replicas are too many, one for all of them, whose ranks follow each
// other.
std::vector<std::vector<int>> columns_of(const Row& row) {
  if (row.replicas.size() <= kMostColumns) return row.replicas;
  std::vector<int> all;
  for (const std::vector<int>& ranks : row.replicas) all.insert(all.end(), ranks.begin(), ranks.end());
  return {all};
}

// "0-3" for four ranks or more in a row.
std::string ranks_text(const std::vector<int>& ranks) {
  if (ranks.size() < 4) return fmt::format("{}", fmt::join(ranks, " "));
  return fmt::format("{}-{}", ranks.front(), ranks.back());
}

}  // namespace

bool has_grid(const Mesh& mesh) { return mesh.pipeline > 1 || mesh.replicate > 1; }

std::string mesh_grid(const Setup& setup, std::span<const TrainerPlan> plans) {
  const std::vector<Row> rows = rows_of(setup, plans);
  std::size_t width = 5, ranks_width = 8;
  for (const Row& row : rows) {
    width = std::max(width, fmt::format("{}", fmt::join(row.chunks, ", ")).size());
    for (const std::vector<int>& ranks : columns_of(row))
      ranks_width = std::max(ranks_width, ranks_text(ranks).size());
  }
  std::string text = fmt::format("{:>8}  {:<{}}", "pipeline", "units", width);
  const std::size_t columns = columns_of(rows.front()).size();
  for (std::size_t column = 0; column < columns; ++column)
    text += fmt::format("  {:>{}}", fmt::format("ranks{}", columns > 1 ? fmt::format(" [{}]", column) : ""),
                        ranks_width);
  std::vector<ArenaBytes> lines;
  std::ranges::transform(rows, std::back_inserter(lines), &Row::bytes);
  const ArenaColumns arenas(lines);
  text += arenas.heading() + "\n";
  for (std::size_t rank = 0; rank < rows.size(); ++rank) {
    text += fmt::format("{:>8}  {:<{}}", rank, fmt::format("{}", fmt::join(rows[rank].chunks, ", ")), width);
    for (const std::vector<int>& ranks : columns_of(rows[rank]))
      text += fmt::format("  {:>{}}", ranks_text(ranks), ranks_width);
    text += arenas.line(rows[rank].bytes) + "\n";
  }
  return text;
}

nlohmann::json mesh_json(const Setup& setup, std::span<const TrainerPlan> plans) {
  const Mesh& mesh = setup.options.engine.mesh;
  const Pipeline& pipeline = setup.options.engine.strategy.pipeline;
  nlohmann::json rows = nlohmann::json::array();
  for (const Row& row : rows_of(setup, plans)) {
    rows.push_back({{"units", row.chunks}, {"ranks", row.replicas}});
    add_arenas(rows.back(), row.bytes);
  }
  return {{"pipeline", mesh.pipeline},
          {"replicate", mesh.replicate},
          {"shard", mesh.shard},
          {"tensor", mesh.tensor},
          {"schedule", name_of(pipeline.schedule)},
          {"chunks", pipeline.chunks},
          {"cuts", pipeline.cuts},
          {"gather_once", pipeline.gather_once},
          {"pipeline_ranks", std::move(rows)}};
}

}  // namespace tessera::cli
