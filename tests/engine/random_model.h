// Random small models: chains of units of very different size, with tied, frozen and one-element parameters,
// of several types and groups, and units of nothing. Their values depend on all that they are given, so that
// what is stale, missing or not released shows; sums are made in a fixed order.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kernels/casts.h"
#include "tessera/model.h"
#include "tests/program/random_strategy.h"

namespace tessera::testing {

// Where a backward of this thread writes an infinite gradient; −1: nowhere.
inline thread_local UnitId spoilt_unit = -1;

struct ChainUnit {
  std::string name;
  UnitId unit = 0;
  std::vector<ParameterSpec> parameters;
  bool forward_only = false;  // backward reads no parameters
  bool reads_batch = false;
  bool saves = true;
  bool remakes = true;
  int in = 1, out = 1;  // fp32 values a token
  bool first = false, last = false;
};

// A microbatch: for each token `in` inputs of the first unit, then for each a target.
class ChainModule final : public Module {
 public:
  ChainModule(ChainUnit unit, int batch_width) : unit_(std::move(unit)), batch_width_(batch_width) {}

  std::vector<ParameterSpec> parameters() const override { return unit_.parameters; }
  bool parameters_read_in_forward_only() const override { return unit_.forward_only; }
  std::vector<Initial> initials() const override {
    return std::vector<Initial>(unit_.parameters.size(), {Initial::Kind::uniform, 0.5});
  }
  ModuleNeeds needs(const BatchShape& shape, const Target&) const override {
    const std::int64_t bytes = shape.tokens() * unit_.out * 4;
    ModuleNeeds needs{.activations = UnitActivations{.output_bytes = unit_.last ? 0 : bytes,
                                                     .saved_bytes = unit_.saves ? bytes : 0,
                                                     .recomputable_bytes = unit_.remakes ? bytes : 0,
                                                     .workspace_bytes = bytes,
                                                     .reads_batch = unit_.reads_batch}};
    needs.activations.parts[UnitGraph::kForward].flops = static_cast<double>(bytes);
    needs.activations.parts[UnitGraph::kBackward].flops = 2 * static_cast<double>(bytes);
    return needs;
  }

  void run(int part, const ModuleContext& context) override {
    if (part == UnitGraph::kBackward)
      backward(context, context.input, context.output_gradient, context.input_gradient);
    else
      forward(context, part == UnitGraph::kAgain, context.input, context.output);
  }

 private:
  void forward(const ModuleContext& context, bool again, const void* input, void* output) const {
    const Work work = begin(context, input);
    auto* saved = static_cast<float*>(context.value(UnitGraph::kSaved));
    auto* recomputable = static_cast<float*>(context.value(UnitGraph::kRecomputable));
    for (std::size_t k = 0; k < work.sum.size(); ++k) {
      // A selective recompute goes on from what is saved.
      const float sum = again && saved != nullptr ? saved[k] : work.sum[k];
      if (saved != nullptr && !again) saved[k] = sum;
      const float bent = sum / (1 + std::abs(sum));
      if (recomputable != nullptr) recomputable[k] = bent;
      static_cast<float*>(context.workspace)[k] = bent;
    }
    const auto* outputs = static_cast<const float*>(context.workspace);
    if (output != nullptr) std::copy_n(outputs, work.sum.size(), static_cast<float*>(output));
    if (unit_.last && context.kind == StepKind::evaluate && context.total != nullptr)
      *context.total = loss(context, outputs, nullptr);
  }

  void backward(const ModuleContext& context, const void* input, const void* output_gradient,
                void* input_gradient) const {
    const Work work = begin(context, input);
    const auto* saved = static_cast<const float*>(context.value(UnitGraph::kSaved));
    auto* recomputable = static_cast<float*>(context.value(UnitGraph::kRecomputable));
    auto* slope = static_cast<float*>(context.workspace);
    std::vector<float> bent(work.sum.size());
    for (std::size_t k = 0; k < bent.size(); ++k) {
      const float sum = saved != nullptr ? saved[k] : work.sum[k];
      bent[k] = recomputable != nullptr ? recomputable[k] : sum / (1 + std::abs(sum));
      slope[k] = (1 - std::abs(bent[k])) * (1 - std::abs(bent[k])) + 0.01f * sum;
    }
    if (recomputable != nullptr)
      std::fill_n(recomputable, bent.size(), std::numeric_limits<float>::quiet_NaN());
    std::vector<float> gradient(bent.size());
    if (unit_.last)
      *context.total = loss(context, bent.data(), gradient.data());
    else
      std::copy_n(static_cast<const float*>(output_gradient), gradient.size(), gradient.begin());
    for (std::size_t k = 0; k < gradient.size(); ++k) gradient[k] *= slope[k];
    write_gradients(context, work, gradient);
    if (input_gradient == nullptr) return;
    std::vector<float> down(static_cast<std::size_t>(tokens(context) * unit_.in));
    for (std::int64_t t = 0; t < tokens(context); ++t)
      for (int j = 0; j < unit_.out; ++j)
        down[at(t, j % unit_.in, unit_.in)] +=
            gradient[at(t, j, unit_.out)] * work.scale[at(t, j, unit_.out)];
    std::copy(down.begin(), down.end(), static_cast<float*>(input_gradient));
  }

  struct Work {
    std::vector<float> input;       // [tokens, in]
    std::vector<float> scale, sum;  // [tokens, out]
  };

  static std::int64_t tokens(const ModuleContext& context) { return context.shape.tokens(); }
  static std::size_t at(std::int64_t token, int column, int width) {
    return static_cast<std::size_t>(token * width + column);
  }
  bool scales(std::size_t parameter) const { return parameter % 2 == 0 && !unit_.forward_only; }
  std::size_t element(std::size_t parameter, std::int64_t token, int column) const {
    const std::int64_t numel = numel_of(unit_.parameters[parameter].shape);
    return static_cast<std::size_t>((token * 37 + column * 3 + static_cast<std::int64_t>(parameter)) % numel);
  }

  Work begin(const ModuleContext& context, const void* input) const {
    Work work;
    const std::size_t numel = static_cast<std::size_t>(tokens(context) * unit_.out);
    const auto* batch = static_cast<const float*>(context.batch);
    const auto* from = unit_.first ? batch : static_cast<const float*>(input);
    work.input.assign(from, from + tokens(context) * unit_.in);
    if (unit_.reads_batch && !unit_.first)
      for (std::int64_t t = 0; t < tokens(context); ++t)
        work.input[at(t, 0, unit_.in)] += 0.125f * batch[at(t, 0, batch_width_)];
    work.scale.assign(numel, 0.5f);
    work.sum.assign(numel, 0.0f);
    const bool reads = !(unit_.forward_only && context.pass != Pass::forward);
    for (std::size_t k = 0; k < unit_.parameters.size() && reads; ++k) {
      const ParameterSpec& parameter = unit_.parameters[k];
      std::vector<float> values(static_cast<std::size_t>(numel_of(parameter.shape)));
      kernels::cast({}, numel_of(parameter.shape), parameter.dtype, context.parameters[k], DType::fp32,
                    values.data());
      std::vector<float>& into = scales(k) ? work.scale : work.sum;
      for (std::int64_t t = 0; t < tokens(context); ++t)
        for (int j = 0; j < unit_.out; ++j) into[at(t, j, unit_.out)] += 0.3f * values[element(k, t, j)];
    }
    for (std::int64_t t = 0; t < tokens(context); ++t)
      for (int j = 0; j < unit_.out; ++j)
        work.sum[at(t, j, unit_.out)] +=
            work.scale[at(t, j, unit_.out)] * work.input[at(t, j % unit_.in, unit_.in)];
    return work;
  }

  LossTotal loss(const ModuleContext& context, const float* outputs, float* gradient) const {
    const float* targets = static_cast<const float*>(context.batch) + tokens(context) * batch_width_;
    LossTotal total{.sum = 0, .counted = tokens(context)};
    for (std::int64_t t = 0; t < tokens(context); ++t)
      for (int j = 0; j < unit_.out; ++j) {
        const std::size_t k = at(t, j, unit_.out);
        const float off = outputs[k] - targets[t];
        total.sum += 0.5 * static_cast<double>(off) * static_cast<double>(off);
        if (gradient != nullptr) gradient[k] = context.loss_scale * off;
      }
    return total;
  }

  void write_gradients(const ModuleContext& context, const Work& work,
                       const std::vector<float>& gradient) const {
    bool spoil = spoilt_unit == unit_.unit;
    for (std::size_t k = 0; k < unit_.parameters.size(); ++k) {
      void* const to = context.gradients[k];
      if (to == nullptr) continue;
      const ParameterSpec& parameter = unit_.parameters[k];
      std::vector<float> values(static_cast<std::size_t>(numel_of(parameter.shape)));
      for (std::int64_t t = 0; t < tokens(context); ++t)
        for (int j = 0; j < unit_.out; ++j)
          values[element(k, t, j)] += 0.3f * gradient[at(t, j, unit_.out)] *
                                      (scales(k) ? work.input[at(t, j % unit_.in, unit_.in)] : 1);
      if (std::exchange(spoil, false)) values.back() = std::numeric_limits<float>::infinity();
      const auto numel = static_cast<std::int64_t>(values.size());
      if (context.betas[k] != 0) {
        std::vector<float> there(values.size());
        kernels::cast({}, numel, parameter.dtype, to, DType::fp32, there.data());
        for (std::size_t i = 0; i < values.size(); ++i) values[i] += there[i];
      }
      kernels::cast({}, numel, DType::fp32, values.data(), parameter.dtype, to);
    }
  }

  ChainUnit unit_;
  int batch_width_;
};

inline Model random_chain(Draws& draws, DType type, int groups, int units) {
  Model model;
  model.name = "chain";
  model.groups.clear();
  for (int group = 0; group < groups; ++group) model.groups.push_back("group" + std::to_string(group));
  const int batch_width = draws.pick(1, 5);
  int width = batch_width;
  std::vector<ParameterSpec> before;
  for (UnitId unit = 0; unit < units; ++unit) {
    ChainUnit made;
    made.name = "unit" + std::to_string(unit);
    made.unit = unit;
    made.first = unit == 0;
    made.last = unit + 1 == units;
    made.parameters = random_parameters(draws, made.name, type, groups, before);
    if (made.last && std::ranges::none_of(before, &ParameterSpec::trainable))
      made.parameters.push_back({.name = "learns", .shape = {7}});
    made.forward_only = draws.chance(20);
    made.reads_batch = made.first || made.last || draws.chance(15);
    // What is saved depends on the parameters, without which it could not be made again.
    made.saves = draws.chance(80) && !made.forward_only;
    made.remakes = draws.chance(70) && !made.forward_only;
    made.in = std::exchange(width, draws.chance(20) ? draws.pick(20, 60) : draws.pick(1, 9));
    made.out = width;
    before.insert(before.end(), made.parameters.begin(), made.parameters.end());
    model.names.push_back(made.name);
    model.modules.push_back(std::make_unique<ChainModule>(made, batch_width));
  }
  model.batch_bytes = [batch_width](const BatchShape& shape) {
    return shape.tokens() * (batch_width + 1) * 4;
  };
  model.max_length = 64;
  return model;
}

}  // namespace tessera::testing
