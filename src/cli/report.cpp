#include "src/cli/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>

#include "src/cli/files.h"
#include "tessera/machine.h"

namespace tessera::cli {

namespace {

constexpr std::uintmax_t kLargestResult = 1 << 26;  // bytes

// Whether nothing is there, or what may be an earlier result.
bool may_become_result(const std::string& path) {
  std::error_code none;
  const std::filesystem::file_status there = std::filesystem::status(path, none);
  if (path.empty() || is_standard_output(path) || !std::filesystem::exists(there)) return !path.empty();
  if (!std::filesystem::is_regular_file(there) || std::filesystem::file_size(path, none) > kLargestResult)
    return false;
  const nlohmann::json old = nlohmann::json::parse(read_text(path).value_or(""), nullptr, false);
  // What all results of one command have, or of another.
  constexpr std::array kOfResults = {"error", "ranks", "compiler", "files"};
  return old.is_object() &&
         std::ranges::any_of(kOfResults, [&](const char* key) { return old.contains(key); });
}

}  // namespace

std::string parameters_text(const Model& model) {
  const std::int64_t all = model.parameter_numel(), trained = model.trained_numel();
  const std::string rest = trained == all ? "" : fmt::format(", of which {} are trained", count(trained));
  return fmt::format("{} parameters{}", count(all), rest);
}

void print_model(const Setup& setup) {
  const auto print_dimensions = [&](const auto& model) {
    fmt::print("model     {}, {} layers, {} channels, {} heads, vocabulary {}, {}\n",
               parameters_text(*setup.model), model.layers, model.channels, model.heads, model.vocabulary,
               setup.config.precision.parameters);
  };
  std::visit(print_dimensions, setup.dimensions);
  fmt::print("ranks     {} ({}), stage {}\n", setup.world(), to_string(setup.options.engine.mesh),
             setup.config.strategy.stage);
  const auto microbatches = [](std::int64_t number) {
    return fmt::format("{} microbatch{}", number, number == 1 ? "" : "es");
  };
  const Rounds& rounds = setup.grid.rounds;
  const std::string of_each =
      rounds.last_ranks == 0
          ? fmt::format("{} of {} × {} on each rank", microbatches(rounds.count),
                        setup.options.batch.sequences, setup.options.batch.length)
          : fmt::format("{} of {} × {}, {} on {} of {} data ranks and {} on the others",
                        microbatches(rounds.microbatches(setup.grid.mesh)), setup.options.batch.sequences,
                        setup.options.batch.length, rounds.count, rounds.last_ranks,
                        rounds.ranks(setup.grid.mesh), rounds.count - 1);
  fmt::print("step      {} tokens: {}\n", count(setup.tokens_per_step()), of_each);
  if (const int count = setup.options.evaluation_microbatches; !setup.not_opened.empty())
    fmt::print("evaluate  {} of a rank {} assumed, fewer where the data hold fewer: {}\n",
               microbatches(count), count == 1 ? "is" : "are", setup.not_opened);
}

void print_notes(const Config& config, std::FILE* to) {
  for (const std::string& note : config.notes) fmt::print(to, "{}\n", note);
}

void print_products(const Setup& setup) {
  if (setup.options.engine.device != DeviceType::cpu || setup.config.precision.parameters != "bf16") return;
  if (read_machine().instruction_set.starts_with("AVX-512")) return;
  fmt::print(
      "products  of bf16 matrices are computed in fp32, as this processor lacks AVX-512: "
      "precision.parameters = \"fp32\" is faster\n");
}

void print_budget(const char* key, std::int64_t budget, std::int64_t needed) {
  if (budget > 0)
    fmt::print("budget    {}: {} bytes: {}\n", key, count(budget),
               needed <= budget ? "it fits" : fmt::format("{} bytes are missing", count(needed - budget)));
}

nlohmann::json numerics_json(const Numerics& numerics) {
  const auto facts = [](const std::vector<NumericFact>& of) {
    nlohmann::json all = nlohmann::json::array();
    for (const NumericFact& fact : of) all.push_back({{"what", fact.what}, {"value", fact.value}});
    return all;
  };
  return {{"fingerprint", fingerprint_of(numerics)},
          {"program", facts(numerics.program)},
          {"run", facts(numerics.run)}};
}

void ResultFile::open() {
  if (writes_) file_ = OutputFile(named().key, path_);
}

void ResultFile::write(const nlohmann::json& result) {
  if (!file_) return;
  file_.stream() << result.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) << "\n";
  file_.commit();
}

void ResultFile::fail(std::string_view message) noexcept try {
  if (!file_ && may_become_result(path_)) open();
  write({{"error", message}});
} catch (const std::exception&) {
  // what failed is printed all the same
}

}  // namespace tessera::cli
