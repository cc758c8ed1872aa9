// A toy model whose gradients are known beforehand, driven through the engine's verbs alone.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "kernels/casts.h"
#include "tessera/engine.h"
#include "tessera/layout.h"

namespace tessera::testing {

// Weights of `type` beside fp32 ones in one unit, a tied and a frozen parameter, one-element parameters, a
// unit of nothing. Group 0 decays, group 1 does not.
inline std::vector<UnitSpec> toy_units(DType type) {
  const auto fp32 = DType::fp32;
  return {
      {.name = "embed",
       .parameters = {{.name = "embed.weight", .shape = {40, 13}, .dtype = type},
                      {.name = "embed.bias", .shape = {13}, .dtype = fp32, .group = 1}}},
      {.name = "block.0",
       .parameters = {{.name = "block.0.weight", .shape = {33, 17}, .dtype = type},
                      {.name = "block.0.scale", .shape = {}, .dtype = type, .group = 1},
                      {.name = "block.0.frozen", .shape = {10}, .dtype = type, .trainable = false}}},
      {.name = "activation", .parameters = {}},
      {.name = "block.1",
       .parameters = {{.name = "block.1.one", .shape = {1}, .dtype = fp32, .group = 1},
                      {.name = "block.1.weight", .shape = {300}, .dtype = type}}},
      {.name = "head",
       .parameters = {{.name = "head.weight", .shape = {40, 13}, .dtype = type, .tied_to = "embed.weight"},
                      {.name = "head.bias", .shape = {40}, .dtype = fp32, .group = 1}}}};
}
inline constexpr ParameterId kEmbedWeight = 0, kEmbedBias = 1, kBlockWeight = 2, kBlockScale = 3, kFrozen = 4,
                             kHeadWeight = 7;
inline constexpr UnitId kEmbed = 0, kBlock0 = 1, kActivation = 2, kBlock1 = 3, kHead = 4;

inline const LocalOptions kBlocking{.waiting = Waiting::block};

inline EngineOptions toy_options(int world, int stage) {
  EngineOptions options;
  options.mesh.shard = world;
  options.strategy.placements = Placements::of_stage(stage);
  options.optimizer.options = AdamWOptions{.weight_decay = 0.1};
  options.optimizer.groups = {{.name = "decay"},
                              {.name = "no_decay", .weight_decay = 0.0, .learning_rate_factor = 0.5}};
  options.waits.deadline = std::chrono::seconds(60);
  options.waits.waiting = Waiting::block;  // many short engines on few cores
  options.overwrites_gradients = true;
  return options;
}

// Multiples of 1/64 within ±2/3: exact in every type.
inline float toy_initial(ParameterId parameter, std::int64_t index) {
  return static_cast<float>((parameter * 29 + index * 7) % 83 - 41) / 64.0f;
}

inline Engine::Fill toy_fill() {
  return [](ParameterId parameter, std::int64_t begin, std::span<float> values) {
    for (std::size_t k = 0; k < values.size(); ++k)
      values[k] = toy_initial(parameter, begin + static_cast<std::int64_t>(k));
  };
}

// Where a gradient is written: tied parameters have one in each of their uses.
struct GradientAt {
  ParameterId parameter = 0;
  std::int64_t index = 0;
  int step = 0;
  int microbatch = 0;
  int rank = 0;
};
using Gradient = std::function<float(const GradientAt&)>;

// Multiples of 1/8 within ±1: exact in every type, and so are sums of a few.
inline float toy_gradient(const GradientAt& at) {
  const std::int64_t mixed =
      at.parameter * 7 + at.index * 13 + at.step * 5 + at.microbatch * 3 + at.rank * 11;
  return static_cast<float>(mixed % 17 - 8) / 8.0f;
}

inline double toy_weight(int rank) { return 2.0 + rank; }
inline double toy_loss(int rank, int step) { return 10.0 * rank + step; }

struct ToyStep {
  int step = 0;
  int microbatches = 1;
  double learning_rate = 0.01;
  Gradient gradient = toy_gradient;
  std::function<bool(UnitId, Pass, int microbatch)> skip = {};  // where skip() stands for the use
};

// Adds (or sets, as the lease says) the gradients of one backward. `add(id, values)` adds to those of one
// parameter, as many as the rank has, in the order of its memory.
template <class Add>
void write_gradients_with(const Engine& engine, UnitLease& lease, const Add& add) {
  const Layout& layout = engine.layout();
  const ParameterId first = layout.first_parameter(lease.unit());
  const auto count = static_cast<ParameterId>(layout.units()[lease.unit()].parameters.size());
  for (ParameterId id = first; id < first + count; ++id) {
    if (!layout.parameter(id).trainable) continue;
    const TensorView view = lease.gradient(id);
    std::vector<float> values(static_cast<std::size_t>(view.numel), 0.0f);
    if (lease.gradient_beta(id) != 0.0f)
      kernels::cast({}, view.numel, view.dtype, view.data, DType::fp32, values.data());
    add(id, std::span(values));
    kernels::cast({}, view.numel, DType::fp32, values.data(), view.dtype, view.data);
  }
}

inline void write_gradients(const Engine& engine, UnitLease& lease, const ToyStep& step, float scale = 1.0f) {
  write_gradients_with(engine, lease, [&](ParameterId id, std::span<float> values) {
    std::int64_t index = 0;
    for (float& value : values)
      value += scale * step.gradient({id, index++, step.step, lease.microbatch(), engine.rank()});
  });
}

// The uses of all microbatches, in the default order.
inline void toy_uses(Engine& engine, const ToyStep& step, StepKind kind = StepKind::train) {
  const auto units = engine.layout().units().count();
  const float scale = engine.loss_scale();
  for (int microbatch = 0; microbatch < step.microbatches; ++microbatch) {
    for (UnitId unit = 0; unit < units; ++unit) {
      if (step.skip && step.skip(unit, Pass::forward, microbatch))
        engine.skip(unit, Pass::forward);
      else
        engine.use(unit, Pass::forward).end();
    }
    if (kind == StepKind::evaluate) continue;
    for (UnitId unit = units - 1; unit >= 0; --unit) {
      if (step.skip && step.skip(unit, Pass::backward, microbatch)) {
        engine.skip(unit, Pass::backward);
        continue;
      }
      UnitLease lease = engine.use(unit, Pass::backward);
      write_gradients(engine, lease, step, scale);
      lease.end();
    }
  }
}

inline StepResult toy_step(Engine& engine, const ToyStep& step) {
  engine.begin(StepKind::train, step.microbatches);
  toy_uses(engine, step);
  return engine.step({.learning_rate = step.learning_rate,
                      .weight = toy_weight(engine.rank()),
                      .loss = toy_loss(engine.rank(), step.step)});
}

// A state of all parameters that have it, in declaration order, ties once. Collective.
inline std::vector<float> read_state(Engine& engine, StateKind state) {
  std::vector<float> all;
  const Layout& layout = engine.layout();
  for (ParameterId id = 0; id < layout.parameters(); ++id) {
    if (layout.place(id).home != id || (state != StateKind::parameter && !layout.parameter(id).trainable))
      continue;
    std::vector<float> values(static_cast<std::size_t>(layout.place(id).numel));
    engine.read(id, state, 0, values);
    all.insert(all.end(), values.begin(), values.end());
  }
  return all;
}

// Masters, parameters and both moments.
inline std::vector<float> read_everything(Engine& engine) {
  std::vector<float> all;
  for (StateKind state : {StateKind::master, StateKind::parameter, StateKind::moment1, StateKind::moment2}) {
    if (static_cast<int>(state) - 2 >= engine.options().optimizer.moments()) continue;
    const std::vector<float> values = read_state(engine, state);
    all.insert(all.end(), values.begin(), values.end());
  }
  return all;
}

}  // namespace tessera::testing
