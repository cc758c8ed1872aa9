#include "src/cli/report.h"

#include <fmt/format.h>

namespace tessera::cli {

void print_model(const Setup& setup) {
  const auto print_dimensions = [&](const auto& model) {
    fmt::print("model     {} parameters, {} layers, {} channels, {} heads, vocabulary {}, {}\n",
               count(setup.model->parameter_numel()), model.layers, model.channels, model.heads,
               model.vocabulary, setup.config.precision.parameters);
  };
  std::visit(print_dimensions, setup.dimensions);
  fmt::print("ranks     {} ({}), stage {}\n", setup.world(), to_string(setup.options.engine.mesh),
             setup.config.strategy.stage);
  fmt::print("step      {} tokens: {} microbatch{} of {} × {} on each rank\n", count(setup.tokens_per_step()),
             setup.options.microbatches, setup.options.microbatches == 1 ? "" : "es",
             setup.options.batch.sequences, setup.options.batch.length);
}

void print_budget(const char* key, std::int64_t budget, std::int64_t needed) {
  if (budget > 0)
    fmt::print("budget    {}: {} bytes: {}\n", key, count(budget),
               needed <= budget ? "it fits" : fmt::format("{} bytes are missing", count(needed - budget)));
}

void write_json(OutputFile& file, const nlohmann::json& result) {
  if (!file) return;
  file.stream() << result.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) << "\n";
  file.commit();
}

}  // namespace tessera::cli
