#include "src/cli/setup_check.h"

#include <fmt/format.h>

#include <functional>
#include <numeric>

#include "src/cli/config_keys.h"

namespace tessera::cli {

namespace {

constexpr std::int64_t kMostTokens = (std::int64_t{1} << 31) - 1;  // of a microbatch, as modules count them
constexpr double kMostBytes = 0x1p62;                              // of a plan, which counts them in 63 bits

constexpr double kParameterBytes = 32;                    // with states, gradients and gathered copies
constexpr double kChannelBytes = 128, kHiddenBytes = 32;  // that a block keeps of a token, at most
constexpr double kLogitBytes = 8;                         // likewise the head, of a token of the vocabulary

double numel(const ParameterSpec& parameter) {
  return std::accumulate(parameter.shape.begin(), parameter.shape.end(), 1.0, std::multiplies<>());
}

std::int64_t hidden_of(const Gpt2Config& dimensions) { return 4 * dimensions.channels; }
std::int64_t hidden_of(const LlamaConfig& dimensions) { return dimensions.hidden; }

}  // namespace

void check_batch(const Setup& setup) {
  const RunConfig& run = setup.config.run;
  const std::int64_t context = std::visit([](const auto& d) { return d.context; }, setup.dimensions);
  if (run.length > context)
    throw UsageError(fmt::format("run.length is {}; model.context allows at most {}", run.length, context));
  if (run.sequences > kMostTokens / run.length)
    throw UsageError(fmt::format(
        "run.sequences is {} and run.length is {}; a microbatch of one rank has at most {} tokens: "
        "make run.sequences at most {}",
        run.sequences, run.length, kMostTokens, kMostTokens / run.length));
}

// The layout refuses such a parameter, too, but knows no keys.
void check_parameters(const Setup& setup) {
  for (const auto& module : setup.model->modules)
    for (const ParameterSpec& parameter : module->parameters())
      if (numel(parameter) >= kMostExact)
        std::visit(
            [&](const auto& of) {
              throw UsageError(fmt::format(
                  "model.vocabulary is {}, model.context {} and model.channels {}: parameter '{}' would have "
                  "shape {}, more elements than can be counted; make the largest of them smaller",
                  of.vocabulary, of.context, of.channels, parameter.name, to_string(parameter.shape)));
            },
            setup.dimensions);
}

// What is added up of parameters and activations is counted, too: here in floating point, and rather more
// than less.
void check_sums(const Setup& setup) {
  constexpr const char* kMend = "make one of them smaller";
  const RunConfig& run = setup.config.run;
  const double tokens = static_cast<double>(run.sequences) * static_cast<double>(run.length) *
                        static_cast<double>(setup.options.microbatches);
  const bool of_step = run.microbatches_per_step > 0;
  const std::string batch = fmt::format(
      "run.{} is {}, run.sequences {} and run.length {}", of_step ? "microbatches_per_step" : "microbatches",
      of_step ? run.microbatches_per_step : run.microbatches, run.sequences, run.length);
  const int ranks = setup.options.engine.mesh.data_ranks();
  if (tokens * ranks > kMostExact)
    throw UsageError(
        fmt::format("{}: with {} data ranks a step has {:.3g} tokens, more than can be counted; {}", batch,
                    ranks, tokens * ranks, kMend));
  const auto check = [&](const auto& of) {
    const std::string model = fmt::format("model.layers is {} and model.channels {}", of.layers, of.channels);
    double parameters = 0;
    for (const auto& module : setup.model->modules)
      for (const ParameterSpec& parameter : module->parameters()) parameters += numel(parameter);
    if (kParameterBytes * parameters > kMostBytes)
      throw UsageError(fmt::format("{}: of {:.3g} parameters a plan cannot count the bytes; {}", model,
                                   parameters, kMend));
    const double block =
        kChannelBytes * static_cast<double>(of.channels) + kHiddenBytes * static_cast<double>(hidden_of(of));
    const double bytes =
        tokens * (static_cast<double>(of.layers) * block + kLogitBytes * static_cast<double>(of.vocabulary));
    if (bytes > kMostBytes)
      throw UsageError(fmt::format("{}, {}: activations of {:.3g} bytes are more than a plan can count; {}",
                                   model, batch, bytes, kMend));
  };
  std::visit(check, setup.dimensions);
}

}  // namespace tessera::cli
