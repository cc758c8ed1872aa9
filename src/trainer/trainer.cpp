#include "tessera/trainer.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <utility>

#include "src/nn/initialize.h"
#include "src/trainer/sample_token.h"
#include "src/trainer/trainer_programs.h"
#include "tessera/data.h"
#include "tessera/philox.h"

namespace tessera {
struct Trainer::Impl {
  Impl(Communicator world_in, std::shared_ptr<const Model> model_in, const TrainerOptions& options_in)
      : model(std::move(model_in)),
        options(options_in),
        programs(*model, options),
        world(std::move(world_in)),
        engine(world, model->units(), engine_options(*model, options, programs)) {
    std::size_t most = 0;
    for (const UnitSpec& unit : engine.layout().units()) most = std::max(most, unit.parameters.size());
    std::size_t most_values = 0;
    for (const UnitGraph& unit : programs.specs[0].activations.units)
      most_values = std::max(most_values, unit.values.size());
    values.resize(most_values);
    parameters.resize(most);
    gradients.resize(most);
    betas.resize(most);
    staging.resize(static_cast<std::size_t>(BatchBuffer(*model, options.batch).logits));
    initialize();
  }

  void initialize() {
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

  Engine::Fill initial_weights() {
    return [this](ParameterId id, std::int64_t begin, std::span<float> elements) {
      initial_values(initials[id], options.seed, engine.layout().parameter(id).name, begin, elements,
                     options.engine.threads_per_rank);
    };
  }

  StepResult run(int program, double learning_rate, const Fetch& fetch, bool continues = false);
  void run_use(const Instruction& use, const Fetch& fetch);
  std::int64_t first_sequence(int microbatch) const;
  void bind(const Instruction& use, const UnitLease& lease, ModuleContext& context);
  const UnitGraph& graph_of(const Instruction& use) const {
    return programs.specs[running].activations.units[use.unit];
  }
  void collect(Pass pass, const ModuleContext& context);
  // The logits that a rank with this place along the tensor axis makes.
  ElementRange logits_of(int place) const {
    const int blocks = std::max(model->tensor_blocks, options.engine.mesh.tensor);
    const std::int64_t each = padded_part(std::max(model->token_rows, model->vocabulary), blocks) *
                              (blocks / options.engine.mesh.tensor);
    return {.begin = std::min(place * each, model->vocabulary),
            .end = std::min((place + 1) * each, model->vocabulary)};
  }
  // Of what needs the program that `generation` plans, before ranks wait for each other.
  void check_planned(const char* call) const;
  // Ends a call on all ranks that not all of them made alike.
  void agree(const char* call, const char* argument, std::uint64_t value);
  // That ranks gave the same tokens, then that the model has these: none is refused in the middle of a
  // program, and none by some of the ranks only.
  void agree_on_tokens(const char* call, const char* argument, std::span<const std::int32_t> tokens);

  std::shared_ptr<const Model> model;
  TrainerOptions options;
  TrainerPrograms programs;
  IdVector<Initial> initials;  // by parameter
  Communicator world;
  Engine engine;
  Communicator results = world.duplicate("results");  // what was asked for, and what one rank has of it
  int running = 0;                                    // by place in `programs`
  BatchShape shape;                                   // of the running program
  float* logits = nullptr;                            // on the host
  std::int64_t logits_row = 0;
  std::vector<std::byte> staging;  // a batch on the host
  // The pointers of the running use; sized once for the unit with the most parameters, and values.
  std::vector<void*> parameters, gradients;
  IdVector<void*> values;
  std::vector<float> betas;
};

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
  context.random_key = random_key(options.seed, kStream + static_cast<std::uint64_t>(use.unit),
                                  static_cast<std::uint64_t>(engine.steps_applied()));
  context.first_sequence = first_sequence(use.microbatch);
  context.loss_scale = engine.loss_scale();
  if (last && logits && batch != nullptr)
    context.logits = reinterpret_cast<float*>(batch + layout.logits);
  else if (last && batch != nullptr)
    context.total = reinterpret_cast<LossTotal*>(batch + layout.total);
  context.logits_row = logits_row;
  model->modules[use.unit]->run(use.part, context);
  if (last && use.part == last_that_reads_batch(graph_of(use), use.pass)) collect(use.pass, context);
  lease.end();
}

std::int64_t Trainer::Impl::first_sequence(int microbatch) const {
  const Mesh& mesh = options.engine.mesh;
  const SampleGrid grid = {.mesh = mesh, .rounds = rounds_of(options), .sequences = shape.sequences};
  return grid.first_sample(0, mesh.data_rank(engine.rank()), microbatch);
}

// What the last module wrote in its last pass of a microbatch: losses stay on the device until the step ends.
void Trainer::Impl::collect(Pass pass, const ModuleContext& context) {
  const Pass last_pass = context.kind == StepKind::train ? Pass::backward : Pass::forward;
  if (pass != last_pass) return;
  if (logits) {
    const ElementRange own = logits_of(context.tensor_rank);
    return engine.transfer(logits + own.begin, context.logits + own.begin, 4 * own.numel());
  }
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

void Trainer::Impl::check_planned(const char* call) const {
  if (!options.generation)
    throw UsageError(fmt::format("{}: TrainerOptions::generation is false, so no program was planned", call));
}

void Trainer::Impl::agree_on_tokens(const char* call, const char* argument,
                                    std::span<const std::int32_t> tokens) {
  agree(call, argument, XXH3_64bits(tokens.data(), tokens.size_bytes()));
  if (tokens.empty()) throw UsageError(fmt::format("{}: there are no tokens; give at least one", call));
  const auto wrong = std::ranges::find_if(
      tokens, [&](std::int32_t token) { return token < 0 || token >= model->vocabulary; });
  if (wrong != tokens.end())
    throw UsageError(fmt::format("{}: token {} at place {} is not within 0 to {}, the model's vocabulary",
                                 call, *wrong, wrong - tokens.begin(), model->vocabulary - 1));
}

StepResult Trainer::Impl::run(int program, double learning_rate, const Fetch& fetch, bool continues) {
  // Known beforehand where no target is left out of the loss; the engine tells where one was.
  engine.begin_program(program,
                       {.learning_rate = learning_rate,
                        .weight = static_cast<double>(options.batch.tokens() *
                                                      rounds_of(options).microbatches(options.engine.mesh)),
                        .continues = continues});
  running = program;
  shape = program == programs.generate ? generation_shape(options) : options.batch;
  for (const Instruction& instruction : engine.running().instructions)
    if (instruction.op == Opcode::use) run_use(instruction, fetch);
  return engine.step({.learning_rate = learning_rate, .weight = 0});
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

std::vector<std::int32_t> Trainer::generate(std::vector<std::int32_t> prompt, int count, double temperature,
                                            std::uint64_t seed,
                                            const std::function<void(std::int32_t)>& each) {
  // First whether all gave the same: what means nothing is then refused by all of them.
  impl_->check_planned("generate");
  impl_->agree("generate", "count", static_cast<std::uint64_t>(count));
  impl_->agree("generate", "temperature", std::bit_cast<std::uint64_t>(temperature));
  impl_->agree("generate", "seed", seed);
  impl_->agree_on_tokens("generate", "prompt", prompt);
  if (count < 0) throw UsageError(fmt::format("generate: count is {}; it must be 0 or more", count));
  if (!(temperature >= 0) || !std::isfinite(temperature))
    throw UsageError(
        fmt::format("generate: temperature is {}; it must be 0 or a finite positive number", temperature));
  std::vector<std::int32_t> text = std::move(prompt);
  for (int made = 0; made < count; ++made) {
    text.push_back(sample_token(logits(text), temperature, seed, static_cast<std::uint64_t>(made)));
    if (each) each(text.back());
  }
  return text;
}

std::vector<float> Trainer::logits(std::span<const std::int32_t> tokens) {
  Impl& impl = *impl_;
  impl.check_planned("logits");
  impl.agree_on_tokens("logits", "tokens", tokens);
  const auto length = static_cast<std::size_t>(generation_shape(impl.options).length);
  const auto context = tokens.last(std::min(length, tokens.size()));
  std::vector<float> logits(static_cast<std::size_t>(impl.model->vocabulary));
  const struct Wanted {  // also where the program is refused
    Impl& impl;
    ~Wanted() { impl.logits = nullptr; }
  } wanted{impl};
  impl.logits = logits.data();
  impl.logits_row = static_cast<std::int64_t>(context.size()) - 1;
  impl.run(impl.programs.generate, 0.0, [&](int, void* batch) {
    auto* inputs = static_cast<std::int32_t*>(batch);
    std::fill_n(inputs, length, 0);
    std::copy(context.begin(), context.end(), inputs);
    std::fill_n(inputs + length, length, -1);  // nothing is counted
  });
  const Mesh& mesh = impl.options.engine.mesh;
  for (int place = 0; place < mesh.tensor && mesh.pipeline * mesh.tensor > 1; ++place) {
    const ElementRange part = impl.logits_of(place);
    impl.results.broadcast(logits.data() + part.begin, 4 * part.numel(),
                           mesh.rank({mesh.pipeline - 1, 0, 0, place}), {.operation = "logits"});
  }
  return logits;
}

Engine& Trainer::engine() { return impl_->engine; }
const Model& Trainer::model() const { return *impl_->model; }
Engine::Fill Trainer::initial_weights() const { return impl_->initial_weights(); }

}  // namespace tessera
