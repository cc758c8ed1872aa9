#include "src/cli/run_numerics.h"

#include <fmt/format.h>

#include <algorithm>

namespace tessera::cli {

namespace {

constexpr std::string_view kWeights = "the first weights";

std::string schedule_words(const Schedule& of) {
  std::string words = fmt::format("{}, peak {}, warmup {} steps", name_of(of.kind), of.peak, of.warmup_steps);
  if (of.kind == ScheduleKind::constant) return words;
  words += fmt::format(", to {} of it in {} steps", of.final_factor, of.total_steps);
  if (of.kind == ScheduleKind::warmup_stable_decay)
    words += fmt::format(", of which the last {} decay", of.decay_steps);
  return words;
}

std::string samples_words(const Setup& setup, const Data* data) {
  const DataConfig& config = setup.config.data;
  if (data == nullptr)
    return fmt::format("of '{}', without {} of it where that is no other file, in the order of seed {}",
                       config.train, config.validation_fraction, config.seed);
  return fmt::format("{} windows of {}, in the order of seed {}", data->train.windows(), data->train_identity,
                     config.seed);
}

}  // namespace

Numerics with_run(Numerics of_engine, const Setup& setup, const Data* data) {
  const std::string& weights = setup.config.model.weights;
  std::vector<NumericFact>& run = of_engine.run;
  run.push_back({std::string(kWeights),
                 weights.empty() ? "drawn from the seed" : fmt::format("those of '{}'", weights)});
  run.push_back({"the learning rate", schedule_words(setup.schedule)});
  run.push_back({"the samples", samples_words(setup, data)});
  return of_engine;
}

PlannedNumerics planned_numerics(const Setup& setup, std::span<const TrainerPlan> plans) {
  Numerics of_engine = prove_trainer(*setup.model, setup.options, plans);
  std::shared_ptr<const Data> data = setup.data;
  std::string why_not = setup.not_opened;
  if (!data && why_not.empty()) try {
      data = std::make_shared<const Data>(open_data(setup));
    } catch (const Error& error) {
      why_not = error.what();
    }
  return {with_run(std::move(of_engine), setup, data.get()), std::move(why_not)};
}

std::optional<NumericDifference> difference_since(Numerics stored, Numerics now, const Setup& setup) {
  const ModelConfig& model = setup.config.model;
  const bool draws = model.dropout > 0.0 || model.attention_dropout > 0.0;
  for (Numerics* of : {&stored, &now})
    std::erase_if(of->run, [&](const NumericFact& fact) {
      return fact.what == kWeights || (!draws && fact.what == Model::kSeed);
    });
  return first_difference(now, stored);
}

}  // namespace tessera::cli
