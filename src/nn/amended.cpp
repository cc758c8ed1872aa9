#include "src/nn/amended.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <tuple>
#include <utility>

#include "src/nn/live_graph.h"

namespace tessera::nn {
namespace {

class Amended final : public Module {
 public:
  // `below`: whether a unit before this one has a parameter that is trained.
  Amended(std::unique_ptr<Module> inner, std::vector<ParameterSpec> parameters, bool below, bool is_last)
      : inner_(std::move(inner)), parameters_(std::move(parameters)), below_(below), is_last_(is_last) {
    for (const ParameterSpec& parameter : parameters_) trained_.push_back(parameter.trainable);
  }

  std::vector<ParameterSpec> parameters() const override { return parameters_; }
  std::vector<Initial> initials() const override { return inner_->initials(); }

  // Without a backward they are not gathered for one.
  bool parameters_read_in_forward_only() const override {
    return inner_->parameters_read_in_forward_only() || !has_backward();
  }

  ModuleNeeds needs(const BatchShape& shape, const Target& target) const override {
    ModuleNeeds needs = inner_->needs(shape, target);
    LiveGraph live = live_of(needs.activations);
    needs.activations = std::move(live.graph);
    needs.frozen_flops += live.dropped_flops;
    return needs;
  }

  std::string numerics(const BatchShape& shape, const Target& target) const override {
    return inner_->numerics(shape, target);
  }

  void run(int part, const ModuleContext& context) override {
    const int inner = parts_of(context)[static_cast<std::size_t>(part)];
    if (inner >= 0) inner_->run(inner, context);
  }

 private:
  bool has_backward() const {
    return is_last_ || below_ || std::ranges::find(trained_, true) != trained_.end();
  }

  LiveGraph live_of(const UnitGraph& graph) const { return live_graph(graph, trained_, below_, is_last_); }

  // Made once for each shape and target.
  const std::vector<int>& parts_of(const ModuleContext& context) {
    const Target target(context.threads, context.device, context.tensor_ranks, context.exchange_chunks);
    const BatchShape& shape = context.shape;
    const std::lock_guard lock(mutex_);
    std::vector<int>& parts = parts_[{shape.sequences, shape.length, shape.cached, target.threads,
                                      target.device, target.tensor, target.exchange_chunks}];
    if (parts.empty()) parts = live_of(inner_->needs(shape, target).activations).parts;
    return parts;
  }

  const std::unique_ptr<Module> inner_;
  const std::vector<ParameterSpec> parameters_;
  std::vector<bool> trained_;  // by parameter
  const bool below_, is_last_;
  // Ranks may be threads that share the module.
  std::mutex mutex_;
  std::map<std::tuple<std::int64_t, std::int64_t, std::int64_t, int, DeviceType, int, int>, std::vector<int>>
      parts_;
};

}  // namespace

Model amended(Model model, const std::function<void(ParameterSpec&)>& amend) {
  bool below = false;
  for (std::unique_ptr<Module>& module : model.modules) {
    std::vector<ParameterSpec> parameters = module->parameters();
    bool trains = false;
    for (ParameterSpec& parameter : parameters) {
      amend(parameter);
      trains |= parameter.trainable;
    }
    const bool is_last = &module == &model.modules.back();
    module = std::make_unique<Amended>(std::move(module), std::move(parameters), below, is_last);
    below |= trains;
  }
  return model;
}

}  // namespace tessera::nn
