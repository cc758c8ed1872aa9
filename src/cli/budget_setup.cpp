#include "src/cli/budget_setup.h"

#include <algorithm>

namespace tessera::cli {

namespace {

// Shares of states on the device that are tried together with all else.
constexpr int kShares = 16;

class Choices {
 public:
  Choices(const Config& config, const Model& model, TrainerOptions& options)
      : model_(model),
        options_(options),
        strategy_(options.engine.strategy),
        budget_(memory_budget(options.engine)),
        allowed_(allowed_choices(config)),
        states_(chooses_states(config)),
        resident_(config.strategy.resident_units == kAuto &&
                  strategy_.placements.parameters == Placement::sharded) {}

  // One after the other, activations while states and units take the least of the device. Where they do not
  // fit beside these, once more beside those that are chosen, or that fit together.
  void make() {
    choose_activations();
    const bool enough = allowed_.empty() || fits();
    choose_states();
    choose_resident();
    const int open =
        static_cast<int>(!allowed_.empty()) + static_cast<int>(states_) + static_cast<int>(resident_);
    if (open < 2) return;
    if (fits() ? enough : !find_together()) return;
    const std::vector<ActivationChoice> fitting = strategy_.unit_activations;
    choose_activations();
    if (!fits()) strategy_.unit_activations = fitting;
    choose_resident();
  }

 private:
  void choose_activations() {
    if (allowed_.empty()) return;
    strategy_.unit_activations = tessera::choose_activations(model_, options_, budget_, allowed_);
  }

  void choose_states() {
    if (states_)
      strategy_.offload.states_on_device = std::max(0.0, choose_states_on_device(model_, options_, budget_));
  }

  void choose_resident() {
    if (!resident_) return;
    const int most = fit_resident_units(model_, options_, budget_);  // −1: none, or none that was tried
    if (most >= 0) strategy_.resident_units = most;
  }

  bool fits() const { return missing_bytes(model_, options_, budget_) == 0; }

  // Of what takes the least, and of few shares, the first that fits; else all is as before.
  bool find_together() {
    const Strategy before = strategy_;
    const int units = static_cast<int>(model_.modules.size());
    const int shares = states_ ? std::min(kShares, units) : 0;
    std::vector<std::vector<ActivationChoice>> activations;
    for (const ActivationChoice& choice : allowed_)
      if (choice.recompute == Recompute::full) activations.emplace_back(model_.modules.size(), choice);
    if (activations.empty()) activations.push_back(strategy_.unit_activations);
    for (int share = 0; share <= shares; ++share)
      for (const std::vector<ActivationChoice>& choices : activations)
        for (const int resident : {0, units}) {
          if (resident > 0 && !resident_) continue;
          if (states_) strategy_.offload.states_on_device = static_cast<double>(share) / shares;
          if (resident_) strategy_.resident_units = resident;
          strategy_.unit_activations = choices;
          if (fits()) return true;
        }
    strategy_ = before;
    return false;
  }

  const Model& model_;
  TrainerOptions& options_;
  Strategy& strategy_;  // theirs
  const MemoryBudget budget_;
  const std::vector<ActivationChoice> allowed_;
  const bool states_, resident_;  // whether they are to be chosen
};

}  // namespace

std::vector<ActivationChoice> allowed_choices(const Config& config) {
  std::vector<ActivationChoice> allowed;
  if (config.strategy.recompute != "auto") return allowed;
  for (const Space kept : {Space::device, Space::host})
    if (config.offload.activations == "auto" || config.offload.activations == name_of(kept))
      for (const ActivationChoice& choice : recompute_choices())
        allowed.push_back({.recompute = choice.recompute, .kept = kept});
  return allowed;
}

bool chooses_states(const Config& config) {
  return config.offload.states_on_device == kAuto && config.offload.states != "device";
}

std::int64_t missing_bytes(const Model& model, const TrainerOptions& options, const MemoryBudget& budget) {
  std::int64_t most = 0;
  for (const TrainerPlan& plan : plan_pipeline(model, options))
    most = std::max(most, budget.missing_bytes(plan.memory));
  return most;
}

void choose_within_budget(const Config& config, const Model& model, TrainerOptions& options) {
  Choices(config, model, options).make();
}

}  // namespace tessera::cli
