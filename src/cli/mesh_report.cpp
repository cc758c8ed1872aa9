#include "src/cli/mesh_report.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>

#include "src/cli/memory_report.h"
#include "tessera/pipeline.h"

namespace tessera::cli {

namespace {

// What one pipeline rank has.
struct Row {
  std::vector<std::string> chunks;         // "embed to block.2"
  std::vector<std::vector<int>> replicas;  // ranks of each
  ArenaBytes bytes = {};                   // of one rank
};

std::vector<Row> rows_of(const Setup& setup, std::span<const TrainerPlan> plans) {
  const Mesh& mesh = setup.options.engine.mesh;
  const std::vector<std::string>& names = setup.model->names;
  const Partition partition(static_cast<int>(names.size()), mesh.pipeline,
                            setup.options.engine.strategy.pipeline);
  std::vector<Row> rows(plans.size());
  for (const Chunk& chunk : partition.chunks()) {
    const std::string& first = names[static_cast<std::size_t>(chunk.first)];
    const std::string& last = names[static_cast<std::size_t>(chunk.end) - 1];
    rows[static_cast<std::size_t>(chunk.rank)].chunks.push_back(
        first == last ? first : fmt::format("{} to {}", first, last));
  }
  for (int rank = 0; rank < mesh.pipeline; ++rank) {
    Row& row = rows[static_cast<std::size_t>(rank)];
    row.bytes = arena_bytes(plans[static_cast<std::size_t>(rank)].memory);
    for (int replica = 0; replica < mesh.replicate; ++replica)
      row.replicas.push_back(mesh.group(Axis::shard, mesh.rank({rank, replica, 0, 0})));
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
