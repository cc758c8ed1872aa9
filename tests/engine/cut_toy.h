// A toy model with parameters that are cut over tensor ranks, in each way, beside copied ones, of which one
// has a gradient that is a sum over these ranks. Gradients depend on the element of the whole parameter, so
// any mesh must arrive at what one tensor rank does.
#pragma once

#include <string>
#include <vector>

#include "tessera/program.h"
#include "tests/engine/toy.h"

namespace tessera::testing {

// For 2 or 4 tensor ranks. The table is tied, and 41 rows are padded; frozen parameters are cut, too.
inline std::vector<UnitSpec> cut_units(DType type) {
  const auto fp32 = DType::fp32;
  const Cut rows{.dim = 0, .padded = true}, joined{.dim = 0, .segments = {16, 4, 4}}, columns{.dim = 1};
  return {
      {.name = "embed",
       .parameters = {{.name = "embed.weight", .shape = {41, 6}, .dtype = type, .cut = rows},
                      {.name = "embed.position", .shape = {7, 6}, .dtype = type}}},
      {.name = "block.0",
       .parameters = {{.name = "block.0.norm",
                       .shape = {6},
                       .dtype = type,
                       .group = 1,
                       .gradient = GradientOver::partial},
                      {.name = "block.0.qkv", .shape = {24, 6}, .dtype = type, .cut = joined},
                      {.name = "block.0.qkv.bias", .shape = {24}, .dtype = fp32, .group = 1, .cut = joined},
                      {.name = "block.0.out", .shape = {30, 16}, .dtype = type, .cut = columns},
                      {.name = "block.0.out.bias", .shape = {30}, .dtype = fp32, .group = 1},
                      {.name = "block.0.frozen",
                       .shape = {3, 5, 2},
                       .dtype = type,
                       .trainable = false,
                       .cut = {.dim = 1, .padded = true}}}},
      {.name = "activation", .parameters = {}},
      {.name = "block.1",
       .parameters = {{.name = "block.1.scale", .shape = {}, .dtype = type},
                      {.name = "block.1.weight",
                       .shape = {2, 9, 31},
                       .dtype = type,
                       .cut = {.dim = 1, .padded = true}}}},
      {.name = "head",
       .parameters = {
           {.name = "head.weight", .shape = {41, 6}, .dtype = type, .tied_to = "embed.weight", .cut = rows},
           {.name = "head.bias", .shape = {8}, .dtype = fp32, .group = 1}}}};
}

// The same, with each cut in so many blocks.
inline std::vector<UnitSpec> in_blocks(std::vector<UnitSpec> units, int blocks) {
  for (UnitSpec& unit : units)
    for (ParameterSpec& parameter : unit.parameters)
      if (parameter.cut.dim >= 0) parameter.cut.blocks = blocks;
  return units;
}

inline EngineOptions cut_options(const Mesh& mesh, int stage) {
  EngineOptions options = toy_options(1, stage);
  options.mesh = mesh;
  options.parameter_norms = true;
  return options;
}

// What a tensor rank adds to a partial gradient of which all together give `gradient`.
inline float part_of_gradient(float gradient, int tensor_rank, int tensor_ranks) {
  return tensor_rank > 0 ? 0.5f : gradient - 0.5f * static_cast<float>(tensor_ranks - 1);
}

inline void write_cut_gradients(const Engine& engine, UnitLease& lease, const ToyStep& step) {
  const Layout& layout = engine.layout();
  const Mesh& mesh = engine.options().mesh;
  const int tensor_rank = mesh.place(engine.rank(), Axis::tensor), data_rank = mesh.data_rank(engine.rank());
  write_gradients_with(engine, lease, [&](ParameterId id, std::span<float> values) {
    const bool partial = layout.flat(layout.place(id).flat).over == TensorShare::partial;
    const auto numel = static_cast<std::int64_t>(values.size());
    for (const ShareRun& run : layout.shares(id).of_share(tensor_rank, 0, numel))
      for (std::int64_t k = 0; k < run.numel; ++k) {
        const float whole = step.gradient({id, run.global + k, step.step, lease.microbatch(), data_rank});
        values[static_cast<std::size_t>(run.local + k)] +=
            engine.loss_scale() * (partial ? part_of_gradient(whole, tensor_rank, mesh.tensor) : whole);
      }
  });
}

// The uses of this rank, whatever its place in the mesh.
inline void cut_uses(Engine& engine, const ToyStep& step) {
  engine.begin(StepKind::train, step.microbatches);
  for (const Instruction& use : engine.running().instructions) {
    if (use.op != Opcode::use) continue;
    UnitLease lease = engine.use(use.unit, use.pass);
    if (use.pass == Pass::backward) write_cut_gradients(engine, lease, step);
    lease.end();
  }
}

// All tensor ranks bring the weight and loss of their samples; of a pipeline its first ranks do.
inline StepResult end_cut_step(Engine& engine, const ToyStep& step) {
  const Mesh& mesh = engine.options().mesh;
  const int data_rank = mesh.data_rank(engine.rank());
  const bool first = mesh.place(engine.rank(), Axis::pipeline) == 0;
  return engine.step({.learning_rate = step.learning_rate,
                      .weight = first ? toy_weight(data_rank) : 0.0,
                      .loss = first ? toy_loss(data_rank, step.step) : 0.0});
}

inline StepResult cut_step(Engine& engine, const ToyStep& step) {
  cut_uses(engine, step);
  return end_cut_step(engine, step);
}

// What read_everything() reads, of whole parameters. Collective.
inline std::vector<float> read_whole(Engine& engine) {
  std::vector<float> all;
  const Layout& layout = engine.layout();
  for (const StateKind state :
       {StateKind::master, StateKind::parameter, StateKind::moment1, StateKind::moment2})
    for (ParameterId id = 0; id < layout.parameters(); ++id) {
      const bool trainable = layout.parameter(id).trainable;
      if (layout.place(id).home != id || (state != StateKind::parameter && !trainable)) continue;
      std::vector<float> values(static_cast<std::size_t>(numel_of(layout.parameter(id).shape)), -99.0f);
      engine.read(id, state, 0, values);
      all.insert(all.end(), values.begin(), values.end());
    }
  return all;
}

}  // namespace tessera::testing
