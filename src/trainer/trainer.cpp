#include "src/trainer/trainer_impl.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <utility>

#include "src/nn/initialize.h"
#include "tessera/data.h"
#include "tessera/philox.h"

namespace tessera {

Trainer::Impl::Impl(Communicator world_in, std::shared_ptr<const Model> model_in,
                    const TrainerOptions& options_in)
    : model(std::move(model_in)),
      options(for_gpu(options_in, *model)),
      programs(*model, options),
      world(std::move(world_in)),
      engine(world, units_of(*model, options), engine_options(*model, options, programs)) {
  std::size_t most = 0;
  for (const UnitSpec& unit : engine.layout().units()) most = std::max(most, unit.parameters.size());
  std::size_t most_values = 0;
  for (const EngineProgram& program : programs.specs)
    for (const UnitGraph& unit : program.activations.units)
      most_values = std::max(most_values, unit.values.size());
  values.resize(most_values);
  captured_uploads.resize(programs.specs.size());
  parameters.resize(most);
  gradients.resize(most);
  betas.resize(most);
  for (const BatchShape& of : programs.shapes)
    staging.resize(std::max(staging.size(), static_cast<std::size_t>(BatchBuffer(*model, of).logits)));
  initialize();
}

void Trainer::Impl::initialize() {
  for (std::size_t unit = 0; unit < model->modules.size(); ++unit) {
    const std::vector<Initial> own = model->modules[unit]->initials();
    const std::size_t parameters_of = engine.layout().units()[unit].parameters.size();
    if (own.size() != parameters_of)
      throw UsageError(
          fmt::format("unit '{}' has {} parameters, and its module's initials() gives {} values; it "
                      "needs one a parameter, tied ones included",
                      model->names[unit], parameters_of, own.size()));
    initials.insert(initials.end(), own.begin(), own.end());
  }
  engine.initialize(initial_weights());
}

Engine::Fill Trainer::Impl::initial_weights() {
  return [this](ParameterId id, std::int64_t begin, std::span<float> elements) {
    initial_values(initials[id], options.seed, engine.layout().parameter(id).name, begin, elements,
                   options.engine.threads_per_rank);
  };
}

// Points the context at the unit's parameters and, in backward, the gradients that the part writes; and at
// the values that it touches.
void Trainer::Impl::bind(const Instruction& use, const UnitLease& lease, ModuleContext& context) {
  const Layout& layout = engine.layout();
  const ParameterId first = layout.first_parameter(lease.unit());
  const UnitSpec& unit = layout.units()[lease.unit()];
  const std::size_t count = unit.parameters.size();
  const UnitGraph& graph = graph_of(use);
  const PartSpec& part = graph.parts[use.part];
  for (std::size_t k = 0; k < count; ++k) {
    const ParameterId id = first + static_cast<ParameterId>(k);
    parameters[k] = reads_parameters(unit, lease.pass()) ? lease.parameter(id).data : nullptr;
    // Where a schedule runs weight gradients apart, another part may write it.
    const auto of_parameter = [&](const Operand& operand) {
      return operand.role == Role::gradient && operand.region.parameter == layout.place(id).home;
    };
    const bool written =
        part.writes_gradient(static_cast<int>(k)) && std::ranges::any_of(use.operands, of_parameter);
    gradients[k] = written ? lease.gradient(id).data : nullptr;
    betas[k] = written ? lease.gradient_beta(id) : 0.0f;
  }
  context.parameters = {parameters.data(), count};
  context.gradients = {gradients.data(), count};
  context.betas = {betas.data(), count};
  std::fill_n(values.begin(), graph.values.size(), nullptr);
  for (const Operand& operand : use.operands)
    if (operand.role == Role::value) values[operand.region.value] = lease.value(operand.region.value);
  context.values = {values.data(), graph.values.size()};
  context.input = lease.value(SharedValue::input);
  context.output = lease.value(SharedValue::output);
  context.output_gradient = lease.value(SharedValue::output_gradient);
  context.input_gradient = lease.value(SharedValue::input_gradient);
  context.workspace = lease.address(Role::workspace);
  context.workspace_bytes = part.workspace_bytes;
}

void Trainer::Impl::run_use(const Instruction& use, const Fetch& fetch) {
  UnitLease lease = engine.use(use.unit, use.pass);
  const Program& program = engine.running();
  const BatchBuffer layout(*model, shape);
  const Operand* const reads_batch = use.find(Role::batch);  // a unit that does not may find it gone
  std::byte* batch = static_cast<std::byte*>(lease.address(Role::batch));
  if (reads_batch != nullptr &&
      reads_batch->access == Access::write) {  // this rank's first use that reads it
    uploaded.push_back(use.microbatch);
    fetch(use.microbatch, staging.data());
    engine.upload(batch, staging.data(), layout.total);
  }

  const bool last = use.unit + 1 == model->modules.count();
  ModuleContext context;
  context.pass = use.pass;
  context.kind = program.kind;
  context.shape = shape;
  context.threads = options.engine.threads_per_rank;
  context.device = options.engine.device;
  context.stream = engine.stream();
  context.tensor_ranks = options.engine.mesh.tensor;
  context.exchange_chunks = options.exchange_chunks;
  context.tensor_rank = options.engine.mesh.place(engine.rank(), Axis::tensor);
  bind(use, lease, context);
  context.batch = batch;
  constexpr std::uint64_t kStream = 0x64726F70'00000000;  // "drop"; the unit's number follows
  context.random_seed = options.seed;
  context.random_stream = kStream + static_cast<std::uint64_t>(use.unit);
  context.random_key = random_key(context.random_seed, context.random_stream,
                                  static_cast<std::uint64_t>(engine.steps_applied()));
  const StepPlace place = engine.step_place();
  context.updates_at = place.updates;
  context.loss_scale_at = place.loss_scale;
  context.first_sequence = first_sequence(use.microbatch);
  context.loss_scale = engine.loss_scale();
  if (last && logits && batch != nullptr)
    context.logits = reinterpret_cast<float*>(batch + layout.logits);
  else if (last && batch != nullptr && shape.cached == 0)
    context.total = reinterpret_cast<LossTotal*>(batch + layout.total);
  if (last && losses && batch != nullptr) context.losses = reinterpret_cast<float*>(batch + layout.losses);
  context.logits_row = logits_row;
  context.position = shape.cached > 0 ? position : 0;
  model->modules[use.unit]->run(use.part, context);
  if (last && use.part == last_that_reads_batch(graph_of(use), use.pass)) collect(use, context);
  lease.end();
}

std::int64_t Trainer::Impl::first_sequence(int microbatch) const {
  const Mesh& mesh = options.engine.mesh;
  const SampleGrid grid = {.mesh = mesh, .rounds = rounds_of(options), .sequences = shape.sequences};
  return grid.first_sample(0, mesh.data_rank(engine.rank()), microbatch);
}

// What the last module wrote in its last pass of a microbatch: losses stay on the device until the step ends.
void Trainer::Impl::collect(const Instruction& use, const ModuleContext& context) {
  const Pass last_pass = context.kind == StepKind::train ? Pass::backward : Pass::forward;
  if (use.pass != last_pass) return;
  if (logits) {
    const ElementRange own = logits_of(context.tensor_rank);
    return engine.transfer(logits + own.begin, context.logits + own.begin, 4 * own.numel());
  }
  if (context.total == nullptr) return;
  if (losses) engine.transfer(losses + use.microbatch * shape.tokens(), context.losses, 4 * shape.tokens());
  engine.add_loss(context.total);
}

void Trainer::Impl::agree(const char* call, const char* argument, std::uint64_t value) {
  IdVector<std::uint64_t> all(world.world());
  results.all_gather(&value, all.data(), sizeof value, {.operation = call});
  const auto other = std::ranges::find_if(all, [&](std::uint64_t given) { return given != all[0]; });
  if (other == all.end()) return;
  const auto rank = static_cast<int>(other - all.begin());
  throw CommunicationError(fmt::format("{}: rank {} gave other {} than rank 0; all ranks must give the same",
                                       call, rank, argument),
                           rank);
}

void Trainer::Impl::agree_on_tokens(const char* call, const char* argument,
                                    std::span<const std::int32_t> tokens, std::size_t known) {
  agree(call, argument, XXH3_64bits(tokens.data(), tokens.size_bytes()));
  const auto given = tokens.subspan(known);
  if (given.empty()) throw UsageError(fmt::format("{}: there are no tokens; give at least one", call));
  const auto wrong = std::ranges::find_if(
      given, [&](std::int32_t token) { return token < 0 || token >= model->vocabulary; });
  if (wrong != given.end())
    throw UsageError(fmt::format("{}: token {} at place {} is not within 0 to {}, the model's vocabulary",
                                 call, *wrong, wrong - given.begin(), model->vocabulary - 1));
}

StepResult Trainer::Impl::run(int program, double learning_rate, const Fetch& fetch, bool continues) {
  // Known beforehand where no target is left out of the loss; the engine tells where one was.
  StepTerms terms = {.learning_rate = learning_rate,
                     .weight = static_cast<double>(options.batch.tokens() *
                                                   rounds_of(options).microbatches(options.engine.mesh)),
                     .continues = continues};
  const StepInputs inputs = {.learning_rate = learning_rate, .weight = 0};
  const StepMode mode = leaves_nothing_on_host(program) ? engine.next_step(program, terms) : StepMode::eager;
  if (mode == StepMode::replayed)
    return engine.replay(program, terms, inputs, [&](int number, std::span<std::byte> bytes) {
      fetch(captured_uploads[program][static_cast<std::size_t>(number)], bytes.data());
    });
  terms.captured = mode == StepMode::captured;
  run_uses(program, terms, fetch);
  StepResult result = engine.step(inputs);
  if (result.reason != SkipReason::not_captured) {
    if (terms.captured) captured_uploads[program] = uploaded;
    return result;
  }
  terms.captured = false;
  run_uses(program, terms, fetch);
  return engine.step(inputs);
}

// Whether its uses need nothing of the device, so that they can be captured.
bool Trainer::Impl::leaves_nothing_on_host(int program) const {
  return program == programs.train || program == programs.evaluate || program == programs.evaluate_rest;
}

void Trainer::Impl::run_uses(int program, const StepTerms& terms, const Fetch& fetch) {
  engine.begin_program(program, terms);
  running = program;
  uploaded.clear();
  shape = programs.shapes[static_cast<std::size_t>(program)];
  for (const Instruction& instruction : engine.running().instructions)
    if (instruction.op == Opcode::use) run_use(instruction, fetch);
}

namespace {

std::shared_ptr<const Model> checked(std::shared_ptr<const Model> model) {
  if (!model) throw UsageError("Trainer: the model is null");
  return model;
}

void check_fetch(const char* call, const Trainer::Fetch& fetch) {
  if (!fetch) throw UsageError(fmt::format("{}: fetch is empty; give what fills a batch", call));
}

}  // namespace

Trainer::Trainer(Communicator world, std::shared_ptr<const Model> model, const TrainerOptions& options)
    : impl_(std::make_unique<Impl>(std::move(world), checked(std::move(model)), options)) {}
Trainer::~Trainer() = default;

StepResult Trainer::train_step(double learning_rate, const Fetch& fetch) {
  if (!impl_->options.trains)
    throw UsageError("train_step: TrainerOptions::trains is false, so no training step was planned");
  check_fetch("train_step", fetch);
  return impl_->run(impl_->programs.train, learning_rate, fetch);
}

StepResult Trainer::evaluate(const Fetch& fetch, const std::function<bool()>& goes_on) {
  check_fetch("evaluate", fetch);
  const int all = impl_->options.evaluation_microbatches;
  const TrainerPrograms& programs = impl_->programs;
  const int part = programs.part_microbatches;
  StepResult result;
  for (int left = all; left > 0; left -= part) {
    const int first = all - left;
    result = impl_->run(
        left < part ? programs.evaluate_rest : programs.evaluate, 0.0,
        [&](int microbatch, void* batch) { fetch(first + microbatch, batch); }, first > 0);
    if (left > part && goes_on && !goes_on()) {
      result.reason = SkipReason::abandoned;
      break;
    }
  }
  return result;
}

void Trainer::Impl::check_scored(int index) const {
  if (index < 0 || index >= static_cast<int>(options.scored.size()))
    throw UsageError(fmt::format("losses: shape {} does not exist; TrainerOptions::scored has {}", index,
                                 options.scored.size()));
}

std::int64_t Trainer::scored_at_once(int index) const {
  impl_->check_scored(index);
  return impl_->microbatches_at_once() * impl_->options.scored[static_cast<std::size_t>(index)].sequences;
}

void Trainer::Impl::bring_losses(std::span<const float> own, std::span<float> of_all) {
  const Mesh& mesh = options.engine.mesh;
  const auto each = static_cast<std::int64_t>(own.size()) / mesh.pipeline;  // of a microbatch
  std::vector<float> gathered(own.size() * static_cast<std::size_t>(world.world()));
  results.all_gather(own.data(), gathered.data(), static_cast<std::int64_t>(own.size_bytes()),
                     {.operation = "losses"});
  for (std::int64_t begin = 0; begin < static_cast<std::int64_t>(of_all.size()); begin += each) {
    const std::int64_t number = begin / each;
    Coordinates at = {};
    at[Axis::pipeline] = mesh.pipeline - 1;
    const int data_rank = static_cast<int>(number % mesh.data_ranks());
    at[Axis::replicate] = data_rank / mesh.shard;
    at[Axis::shard] = data_rank % mesh.shard;
    const std::int64_t from =
        mesh.rank(at) * static_cast<std::int64_t>(own.size()) + number / mesh.data_ranks() * each;
    std::copy_n(gathered.begin() + from, std::min(each, static_cast<std::int64_t>(of_all.size()) - begin),
                of_all.begin() + begin);
  }
}

void Trainer::losses(int index, std::span<const std::int32_t> inputs, std::span<const std::int32_t> targets,
                     std::span<float> losses) {
  Impl& impl = *impl_;
  impl.check_scored(index);
  const BatchShape scored = impl.options.scored[static_cast<std::size_t>(index)];
  const auto numel = static_cast<std::int64_t>(inputs.size());
  impl.agree("losses", "a shape", static_cast<std::uint64_t>(index));
  impl.agree("losses", "targets", XXH3_64bits(targets.data(), targets.size_bytes()));
  impl.agree_on_tokens("losses", "inputs", inputs);
  if (targets.size() != inputs.size() || losses.size() != inputs.size() || numel % scored.length != 0 ||
      numel / scored.length > scored_at_once(index))
    throw UsageError(
        fmt::format("losses: there are {} inputs, {} targets and {} losses; they must be equally many, of 1 "
                    "to {} sequences "
                    "of {} tokens",
                    inputs.size(), targets.size(), losses.size(), scored_at_once(index), scored.length));
  for (const std::int32_t target : targets)
    if (target != kNotCounted && (target < 0 || target >= impl.model->vocabulary))
      throw UsageError(
          fmt::format("losses: target {} is neither {} nor within 0 to {}, the model's vocabulary", target,
                      kNotCounted, impl.model->vocabulary - 1));
  const Mesh& mesh = impl.options.engine.mesh;
  std::vector<float> own(static_cast<std::size_t>(mesh.pipeline * scored.tokens()));
  const struct Wanted {  // also where the program is refused
    Impl& impl;
    ~Wanted() { impl.losses = nullptr; }
  } wanted{impl};
  impl.losses = own.data();
  const int data_rank = mesh.data_rank(impl.engine.rank());
  impl.run(impl.programs.scored[static_cast<std::size_t>(index)], 0.0, [&](int microbatch, void* batch) {
    auto* const to = static_cast<std::int32_t*>(batch);
    std::fill_n(to, scored.tokens(), 0);
    std::fill_n(to + scored.tokens(), scored.tokens(), kNotCounted);
    const std::int64_t begin = (microbatch * mesh.data_ranks() + data_rank) * scored.tokens();
    const std::int64_t some = std::min(scored.tokens(), numel - begin);
    if (some <= 0) return;  // behind the last sequence
    std::copy_n(inputs.begin() + begin, some, to);
    std::copy_n(targets.begin() + begin, some, to + scored.tokens());
  });
  impl.bring_losses(own, losses);
}

Engine& Trainer::engine() { return impl_->engine; }
const Model& Trainer::model() const { return *impl_->model; }
Engine::Fill Trainer::initial_weights() const { return impl_->initial_weights(); }

}  // namespace tessera
