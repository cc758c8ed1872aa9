#include "src/cli/run_numerics.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "tessera/numeric_differences.h"

namespace tessera::cli {

namespace {

constexpr std::string_view kWeights = "the first weights";

std::string schedule_words(const LearningRateSchedule& of) {
  std::string words =
      fmt::format("{}, peak {}, warmup {} steps", name_of(of.decay), of.peak, of.warmup_steps);
  if (of.decay == LearningRateDecay::constant) return words;
  words += fmt::format(", to {} of it in {} steps", of.final_factor, of.total_steps);
  if (of.decay == LearningRateDecay::warmup_stable_decay)
    words += fmt::format(", of which the last {} decay", of.decay_steps);
  return words;
}

std::string samples_words(const Setup& setup, const Data* data) {
  const DataConfig& config = setup.config.data;
  if (data == nullptr)
    return fmt::format("of '{}', {} of it held back, in the order of seed {}", config.train,
                       config.validation.empty() ? config.validation_fraction : 0.0, config.seed);
  return fmt::format("{} windows of {}, in the order of seed {}", data->train.windows(), data->train_identity,
                     config.seed);
}

// Whether anything but the first weights is drawn from run.seed.
bool draws(const Setup& setup) {
  const ModelConfig& model = setup.config.model;
  return model.dropout > 0.0 || model.attention_dropout > 0.0;
}

bool is_of_the_start(const NumericFact& fact, const Setup& setup) {
  return fact.what == kWeights || (!draws(setup) && fact.what == Model::kSeed);
}

}  // namespace

Numerics with_run(Numerics of_engine, const Setup& setup, const Data* data) {
  const std::string &weights = setup.config.model.weights, &adapter = setup.config.model.adapter;
  const bool draws_adapters = setup.config.lora.rank > 0 && adapter.empty();
  std::vector<NumericFact>& run = of_engine.run;
  if (!weights.empty() && !draws(setup) && !draws_adapters)
    std::erase_if(run, [](const NumericFact& fact) { return fact.what == Model::kSeed; });
  run.push_back({std::string(kWeights),
                 weights.empty()
                     ? "drawn from the seed"
                     : fmt::format("those of '{}'{}", weights,
                                   !adapter.empty() ? fmt::format(", and of the adapter '{}'", adapter)
                                   : draws_adapters ? ", adapters drawn from the seed"
                                                    : "")});
  run.push_back({"the learning rate", schedule_words(setup.schedule)});
  run.push_back({"what is read", samples_words(setup, data)});
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

std::vector<NumericDifference> differences_since(Numerics stored, Numerics now, const Setup& setup) {
  std::vector<NumericDifference> all = differences(now, stored);
  std::erase_if(all, [&](const NumericDifference& of) {
    const bool first_scale = of.what == "loss_scaling.initial" && of.a && of.b;
    return first_scale || is_of_the_start({of.what, ""}, setup);
  });
  return all;
}

Numerics resumed(Numerics now, const Numerics& stored, const Setup& setup) {
  std::vector<NumericFact> run;
  for (const NumericFact& fact : now.run) {
    if (!is_of_the_start(fact, setup)) {
      run.push_back(fact);
      continue;
    }
    const auto before = std::ranges::find(stored.run, fact.what, &NumericFact::what);
    if (before != stored.run.end()) run.push_back(*before);
  }
  for (const NumericFact& fact : stored.run)
    if (is_of_the_start(fact, setup) && std::ranges::find(run, fact.what, &NumericFact::what) == run.end())
      run.push_back(fact);
  now.run = std::move(run);
  return now;
}

}  // namespace tessera::cli
