// One rank of a random case: its engine, and the model or the uses that run on it.
#pragma once

#include "src/nn/initialize.h"
#include "tessera/data.h"
#include "tests/engine/random_case.h"
#include "tests/engine/toy.h"

namespace tessera::testing {

// One rank's engine and the model on it.
class Runner {
 public:
  Runner(const Communicator& world, const RandomCase& of, const EngineOptions& options)
      : of_(of), options_(options), engine_(world, of.units, options) {
    if (of.model == nullptr) {
      engine_.initialize(toy_fill());
      return;
    }
    IdVector<Initial> initials;
    for (const auto& module : of.model->modules)
      for (const Initial& initial : module->initials()) initials.push_back(initial);
    engine_.initialize([&](ParameterId id, std::int64_t begin, std::span<float> values) {
      initial_values(initials[id], 5, engine_.layout().parameter(id).name, begin, values);
    });
  }

  Engine& engine() { return engine_; }

  StepResult run(const Event& event, int number) {
    const StepShape& shape = of_.shapes[event.program];
    const int rank = engine_.rank() % options_.mesh.data_ranks();
    engine_.begin_program(event.program, {.learning_rate = event.learning_rate, .weight = weight_of(event)});
    double loss = 0;
    int uses = 0;
    for (const Instruction& use : engine_.running().instructions) {
      if (use.op != Opcode::use) continue;
      if (event.kind == Event::Kind::abandon && engine_.rank() % 2 == 0 && uses++ >= event.uses &&
          open_.empty())
        return engine_.abandon();
      if (of_.model != nullptr && event.skipped_rank == rank &&
          use.microbatch == event.at % shape.microbatches) {
        engine_.skip(use.unit, use.pass);
        continue;
      }
      spoilt_unit = event.spoilt_unit >= 0 && event.at / shape.microbatches == rank &&
                            event.at % shape.microbatches == use.microbatch
                        ? event.spoilt_unit
                        : -1;
      if (of_.model != nullptr)
        run_use(use, shape, number);
      else
        loss += run_own(use, number);
      spoilt_unit = -1;
    }
    if (event.kind == Event::Kind::abandon && engine_.rank() % 2 == 0) return engine_.abandon();
    if (of_.model != nullptr) return engine_.step({.learning_rate = event.learning_rate, .weight = 0});
    return engine_.step(
        {.learning_rate = event.learning_rate, .weight = toy_weight(engine_.rank()), .loss = loss});
  }

 private:
  // Of all ranks.
  double weight_of(const Event& event) const {
    const StepShape& shape = of_.shapes[event.program];
    const int ranks = options_.mesh.data_ranks();
    double weight = 0;
    for (int rank = 0; rank < ranks; ++rank) weight += toy_weight(rank);
    if (of_.model == nullptr) return weight;
    const std::int64_t microbatches = shape.microbatches * ranks - (event.skipped_rank >= 0 ? 1 : 0);
    return static_cast<double>(std::max<std::int64_t>(1, shape.batch.tokens() * microbatches));
  }

  // A use of a trainer without modules, whose loss and gradients are made of the parameters that it finds.
  double run_own(const Instruction& use, int number) {
    if (use.edge != UseEdge::close) open_.push_back(engine_.use(use.unit, use.pass));
    UnitLease& lease = open_.back();
    const Layout& layout = engine_.layout();
    const UnitSpec& unit = layout.units()[use.unit];
    const ParameterId first = layout.first_parameter(use.unit);
    IdVector<std::vector<float>> values;
    double sum = 0;
    for (std::size_t k = 0; k < unit.parameters.size(); ++k) {
      std::vector<float>& all =
          values.emplace_back(static_cast<std::size_t>(numel_of(unit.parameters[k].shape)));
      if (!reads_parameters(unit, use.pass)) continue;
      const TensorView view = lease.parameter(first + static_cast<ParameterId>(k));
      kernels::cast({}, view.numel, view.dtype, view.data, DType::fp32, all.data());
      for (const float value : all) sum += static_cast<double>(value);
    }
    if (use.edge == UseEdge::open) return sum;
    if (use.pass == Pass::backward) {
      ToyStep step{.step = number};
      step.gradient = [&](const GradientAt& at) {
        if (spoilt_unit == use.unit && at.index == 0) return std::numeric_limits<float>::infinity();
        return toy_gradient(at) + values[at.parameter - first][static_cast<std::size_t>(at.index)];
      };
      write_gradients(engine_, lease, step, engine_.loss_scale());
    }
    lease.end();
    open_.pop_back();
    return sum;
  }

  void fill_batch(int number, int microbatch, const StepShape& shape, std::byte* batch) const {
    const int data_ranks = options_.mesh.data_ranks();
    const int rank = engine_.rank() % data_ranks;
    if (of_.model->vocabulary > 0)
      return fetch_samples(rank, data_ranks, shape.microbatches, number, of_.model->vocabulary, shape.batch)(
          microbatch, batch);
    auto* values = reinterpret_cast<float*>(batch);
    const auto numel = static_cast<std::uint64_t>(of_.model->batch_bytes(shape.batch)) / 4;
    const auto stream = static_cast<std::uint64_t>((number * 100 + microbatch) * data_ranks + rank);
    for (std::uint64_t k = 0; k < numel; ++k)
      values[k] = static_cast<float>(uniform(of_.seed, stream, k)) - 0.5f;
  }

  // As Trainer does.
  void run_use(const Instruction& use, const StepShape& shape, int number) {
    UnitLease lease = engine_.use(use.unit, use.pass);
    const Program& program = engine_.running();
    const Model& model = *of_.model;
    const BatchBuffer layout(model, shape.batch);
    const auto unit = static_cast<std::size_t>(use.unit);
    auto* batch = static_cast<std::byte*>(lease.address(Role::batch));
    if (const Operand* operand = use.find(Role::batch); operand && operand->access == Access::write)
      fill_batch(number, use.microbatch, shape, batch);
    std::vector<void*> parameters, gradients, values;
    std::vector<float> betas;
    const UnitSpec& spec = engine_.layout().units()[unit];
    const Target target(options_.threads_per_rank, options_.device);
    const UnitGraph graph = model.modules[unit]->needs(shape.batch, target).activations;
    const PartSpec& part = graph.parts[use.part];
    for (ValueId id = 0; id < graph.values.count(); ++id) values.push_back(lease.value(id));
    for (std::size_t k = 0; k < spec.parameters.size(); ++k) {
      const ParameterId id = engine_.layout().first_parameter(use.unit) + static_cast<ParameterId>(k);
      // Where a schedule runs weight gradients apart, another part may write it.
      const auto of_parameter = [home = engine_.layout().place(id).home](const Operand& operand) {
        return operand.role == Role::gradient && operand.region.parameter == home;
      };
      const bool written =
          part.writes_gradient(static_cast<int>(k)) && std::ranges::any_of(use.operands, of_parameter);
      parameters.push_back(reads_parameters(spec, use.pass) ? lease.parameter(id).data : nullptr);
      gradients.push_back(written ? lease.gradient(id).data : nullptr);
      betas.push_back(written ? lease.gradient_beta(id) : 0.0f);
    }
    const bool last = unit + 1 == model.modules.size();
    auto* total = last && batch != nullptr ? reinterpret_cast<LossTotal*>(batch + layout.total) : nullptr;
    ModuleContext context{.pass = use.pass,
                          .kind = program.kind,
                          .shape = shape.batch,
                          .parameters = parameters,
                          .gradients = gradients,
                          .betas = betas,
                          .values = values,
                          .input = lease.value(SharedValue::input),
                          .output = lease.value(SharedValue::output),
                          .output_gradient = lease.value(SharedValue::output_gradient),
                          .input_gradient = lease.value(SharedValue::input_gradient),
                          .workspace = lease.address(Role::workspace),
                          .workspace_bytes = part.workspace_bytes,
                          .batch = batch,
                          .loss_scale = engine_.loss_scale(),
                          .total = total};
    context.random_key = random_key(77, static_cast<std::uint64_t>(use.unit),
                                    static_cast<std::uint64_t>(engine_.steps_applied()));
    const SampleGrid grid = {.mesh = options_.mesh, .sequences = shape.batch.sequences};
    context.first_sequence = grid.first_sample(0, options_.mesh.data_rank(engine_.rank()), use.microbatch);
    model.modules[unit]->run(use.part, context);
    const Pass last_pass = program.kind == StepKind::train ? Pass::backward : Pass::forward;
    if (last && use.pass == last_pass && use.part == last_that_reads_batch(graph, use.pass))
      engine_.add_loss(total);
    lease.end();
  }

  const RandomCase& of_;
  EngineOptions options_;
  Engine engine_;
  std::vector<UnitLease> open_;
};

}  // namespace tessera::testing
