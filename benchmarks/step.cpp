// Whole training steps of GPT-2 124M: forward, backward, reduction, norm and clipping, AdamW. Their limit is
// the matrix products of the step's linear layers alone, run through oneDNN on weights of their own, one
// after the other with nothing between them.
//   bench_step --benchmark_filter=one_rank      one rank with all threads
//   bench_step --benchmark_filter=host_update   gpt2-124m's update by the host, inside steps
//   bench_step --benchmark_filter=offload       gpt2-124m with states on device, host and disk
//   bench_step --benchmark_filter=recompute     two blocks of the same width and a small vocabulary: the step
//                                               with selective and full recomputation beside the one without
//   bench_step --benchmark_filter=two_ranks     two ranks of one thread each, stage 3, beside two that share
//                                               nothing
// Tokens a second are of all ranks together.
#include <omp.h>

#include <memory>
#include <mutex>

#include "benchmarks/memory_limit.h"
#include "benchmarks/pairs.h"
#include "benchmarks/random_data.h"
#include "kernels/matmul.h"
#include "tessera/communicator.h"
#include "tessera/device.h"
#include "tessera/machine.h"
#include "tessera/model.h"
#include "tessera/simulate.h"
#include "tessera/trainer.h"

namespace tessera {
namespace {

// The products of a linear layer [out, in] on `rows` tokens: forward, gradient of its input, of its weight.
std::array<kernels::MatmulShape, 3> products_of(std::int64_t rows, std::int64_t out, std::int64_t in,
                                                DType type, DType output_type) {
  const kernels::MatmulShape any{.input_type = type, .output_type = type};
  std::array<kernels::MatmulShape, 3> shapes = {any, any, any};
  shapes[0].m = rows, shapes[0].n = out, shapes[0].k = in, shapes[0].transpose_b = true;
  shapes[0].output_type = output_type;
  shapes[1].m = rows, shapes[1].n = in, shapes[1].k = out;
  shapes[2].m = out, shapes[2].n = in, shapes[2].k = rows, shapes[2].transpose_a = true;
  return shapes;
}

// Every layer has a weight and a gradient of its own, as in a step: they come from memory, not from a cache.
class MatmulStep {
 public:
  MatmulStep(const Gpt2Config& config, const BatchShape& batch, DType type, int threads) : threads_(threads) {
    const std::int64_t rows = batch.tokens(), c = config.channels;
    for (std::int64_t layer = 0; layer < config.layers; ++layer)
      for (const auto& [out, in] : std::initializer_list<std::pair<std::int64_t, std::int64_t>>{
               {3 * c, c}, {c, c}, {4 * c, c}, {c, 4 * c}})
        add(products_of(rows, out, in, type, type));
    add(products_of(rows, config.vocabulary, c, type, DType::fp32));
    arena_ = Arena({.bytes = weight_bytes_ * 2 + activation_bytes_ * 2 + workspace_bytes_});
    if (type == DType::fp32)
      fill(reinterpret_cast<float*>(arena_.base()), 4);
    else
      fill(reinterpret_cast<kernels::Bf16*>(arena_.base()), 2);
  }

  void run() {
    for (const Layer& layer : layers_) product(layer, 0, activation(0), weight(layer), activation(1));
    for (const Layer& layer : layers_) {
      product(layer, 1, activation(0), weight(layer), activation(1));
      product(layer, 2, activation(0), activation(1), gradient(layer));
    }
  }

 private:
  struct Layer {
    std::array<kernels::MatmulShape, 3> shapes;
    std::int64_t offset = 0;  // of its weight among all weights
  };

  void add(const std::array<kernels::MatmulShape, 3>& shapes) {
    const kernels::MatmulShape& s = shapes[0];
    layers_.push_back({shapes, weight_bytes_});
    weight_bytes_ += padded(s.n * s.k * bytes_of(s.input_type));
    activation_bytes_ = std::max(activation_bytes_, padded(s.m * std::max(s.n, s.k) * bytes_of(DType::fp32)));
    for (const kernels::MatmulShape& shape : shapes)
      workspace_bytes_ = std::max(workspace_bytes_, kernels::matmul_workspace_bytes(shape, threads_));
  }
  template <class T>
  void fill(T* values, std::int64_t size) {
    fill_random(values, 2 * weight_bytes_ / size, -0.1f, 0.1f);
    fill_random(values + 2 * weight_bytes_ / size, 2 * activation_bytes_ / size, -1, 1);
  }
  static std::int64_t padded(std::int64_t bytes) { return (bytes + 4095) / 4096 * 4096; }

  void product(const Layer& layer, std::size_t which, const void* a, const void* b, void* c) {
    std::byte* workspace = arena_.base() + 2 * weight_bytes_ + 2 * activation_bytes_;
    const kernels::ComputeContext context{.threads = threads_, .workspace = {workspace, workspace_bytes_}};
    kernels::matmul(context, layer.shapes[which], a, b, nullptr, c);
  }
  std::byte* weight(const Layer& layer) const { return arena_.base() + layer.offset; }
  std::byte* gradient(const Layer& layer) const { return arena_.base() + weight_bytes_ + layer.offset; }
  std::byte* activation(int which) const {
    return arena_.base() + 2 * weight_bytes_ + which * activation_bytes_;
  }

  int threads_;
  std::vector<Layer> layers_;
  std::int64_t weight_bytes_ = 0, activation_bytes_ = 0, workspace_bytes_ = 0;
  Arena arena_;
};

TrainerOptions options_of(const BatchShape& batch, int ranks, int stage, int threads) {
  TrainerOptions options;
  options.engine.mesh.shard = ranks;
  options.engine.strategy.placements = Placements::of_stage(stage);
  options.engine.optimizer.options = AdamWOptions{};
  options.engine.optimizer.groups = {{.name = "decay"}, {.name = "no_decay"}};
  options.engine.clip.max_norm = 1.0;
  options.engine.threads_per_rank = threads;
  options.batch = batch;
  return options;
}

void train(Trainer& trainer, const BatchShape& batch) {
  trainer.train_step(1e-4, [&](int, void* target) {
    auto* tokens = static_cast<std::int32_t*>(target);
    for (std::int64_t t = 0; t < 2 * batch.tokens(); ++t)
      tokens[t] = static_cast<std::int32_t>(t * 7919 % trainer.model().vocabulary);
  });
}

DType type_of(const benchmark::State& state) { return state.range(0) == 32 ? DType::fp32 : DType::bf16; }

void one_rank(benchmark::State& state) {
  const DType type = type_of(state);
  const BatchShape batch{.sequences = 256 / state.range(1), .length = state.range(1)};
  const int threads = read_cores();
  const Gpt2Config config;
  MatmulStep matmuls(config, batch, type, threads);
  Trainer trainer(make_local_world(1)[0], std::make_shared<const Model>(make_gpt2(config, type)),
                  options_of(batch, 1, 0, threads));
  Pairs pairs({"matmuls", "step"});
  matmuls.run();
  train(trainer, batch);
  for (auto round : state) {
    pairs.add(0, seconds_of([&] { matmuls.run(); }));
    const double seconds = seconds_of([&] { train(trainer, batch); });
    pairs.add(1, seconds);
    state.SetIterationTime(seconds);
  }
  pairs.report(state, static_cast<double>(batch.tokens()), "tokens/s");
}

// A step of each in turn.
void take_turns(benchmark::State& state, Pairs& pairs, const std::vector<std::unique_ptr<Trainer>>& trainers,
                const BatchShape& batch) {
  for (auto round : state) {
    double sum = 0;
    for (std::size_t contender = 0; contender < trainers.size(); ++contender) {
      const double seconds = seconds_of([&] { train(*trainers[contender], batch); });
      pairs.add(contender, seconds);
      sum += seconds;
    }
    state.SetIterationTime(sum);
  }
  pairs.report(state, static_cast<double>(batch.tokens()), "tokens/s");
}

// Blocks alone recompute, so there is little else: no large vocabulary, and 256 tokens.
void recompute(benchmark::State& state) {
  const BatchShape batch{.sequences = 256 / state.range(1), .length = state.range(1)};
  const int threads = read_cores();
  const auto model = std::make_shared<const Model>(make_gpt2(
      {.vocabulary = 1024, .context = 1024, .layers = 2, .heads = 12, .channels = 768}, type_of(state)));
  std::vector<std::unique_ptr<Trainer>> trainers;
  for (const Recompute choice : {Recompute::none, Recompute::selective, Recompute::full}) {
    TrainerOptions options = options_of(batch, 1, 0, threads);
    options.engine.strategy.recompute = choice;
    trainers.push_back(std::make_unique<Trainer>(make_local_world(1)[0], model, options));
    train(*trainers.back(), batch);
  }
  Pairs pairs({"none", "selective", "full"});
  take_turns(state, pairs, trainers, batch);
  for (const auto& [name, contender] : {std::pair("selective/none", 1), std::pair("full/none", 2)})
    state.counters[name] = 1 / pairs.ratio(static_cast<std::size_t>(contender));
}

// Of the last traced step: how fast the lane copies while it does.
double copied_gigabytes_per_second(const Engine& engine, Lane lane) {
  const Program& program = engine.program(0);
  double us = 0, bytes = 0;
  for (const TraceSpan& span : engine.trace()) {
    const Instruction& instruction = program.instructions[span.instruction];
    if (instruction.lane != lane || instruction.op != Opcode::copy) continue;
    us += span.end_us - span.start_us;
    bytes += static_cast<double>(program.buffers[instruction.buffer(Role::from)].bytes);
  }
  return us > 0 ? bytes / us / 1e3 : 0;
}

// The same steps with states, then parameters too, in other spaces; OFFLOAD_DIRECTORY names the disk.
void offload(benchmark::State& state) {
  const BatchShape batch{.sequences = 256 / state.range(1), .length = state.range(1)};
  const int threads = read_cores();
  const auto model = std::make_shared<const Model>(make_gpt2({}, DType::bf16));
  const char* directory = std::getenv("OFFLOAD_DIRECTORY");
  std::vector<std::unique_ptr<Trainer>> trainers;
  for (const Offload& offload :
       {Offload{}, Offload{.states = Space::host}, Offload{.states = Space::host, .states_on_device = 0.5},
        Offload{.states = Space::host, .parameters = Space::host}, Offload{.states = Space::disk}}) {
    TrainerOptions options = options_of(batch, 1, 3, threads);
    options.engine.strategy.offload = offload;
    options.engine.disk_directory = directory == nullptr ? "." : directory;
    trainers.push_back(std::make_unique<Trainer>(make_local_world(1)[0], model, options));
    trainers.back()->engine().set_tracing(true);
    train(*trainers.back(), batch);
  }
  Pairs pairs({"device", "host", "host, half", "host, parameters too", "disk"});
  take_turns(state, pairs, trainers, batch);
  for (const auto& [name, contender] : {std::pair("host/device", 1), std::pair("half/device", 2),
                                        std::pair("parameters/device", 3), std::pair("disk/device", 4)})
    state.counters[name] = 1 / pairs.ratio(static_cast<std::size_t>(contender));
  state.counters["disk GB/s"] = copied_gigabytes_per_second(trainers[4]->engine(), Lane::io);
}

// Of the last traced step: from the first update's begin to the last copy's end, and of that in updates.
std::pair<double, double> update_seconds(const Engine& engine) {
  const Program& program = engine.program(0);
  double first = 1e18, last = 0, updating = 0;
  for (const TraceSpan& span : engine.trace()) {
    const Instruction& instruction = program.instructions[span.instruction];
    const bool update = instruction.op == Opcode::update;
    if (update) first = std::min(first, span.start_us);
    if (update) updating += span.end_us - span.start_us;
    if (span.start_us >= first) last = std::max(last, span.end_us);
  }
  return {(last - first) * 1e-6, updating * 1e-6};
}

// The update inside steps, on the device, on the host with one instruction after the other, and on the host
// with lanes, against the memory's limit for as many bytes. On the CPU the copies up, which run beside the
// host's, use the same memory and cores: they read and write 2 bytes a parameter.
void host_update(benchmark::State& state) {
  const BatchShape batch{.sequences = 1, .length = 64};
  const int threads = read_cores();
  const auto model = std::make_shared<const Model>(make_gpt2({}, DType::bf16));
  std::vector<std::unique_ptr<Trainer>> trainers;
  for (const auto& [states, in_order] :
       {std::pair(Space::device, false), std::pair(Space::host, true), std::pair(Space::host, false)}) {
    TrainerOptions options = options_of(batch, 1, 0, threads);
    options.engine.strategy.offload.states = states;
    options.engine.debug.strict_order = in_order;
    trainers.push_back(std::make_unique<Trainer>(make_local_world(1)[0], model, options));
    trainers.back()->engine().set_tracing(true);
    train(*trainers.back(), batch);
  }
  std::int64_t numel = 0;
  for (const Flat& flat : trainers[0]->engine().layout().flats()) numel += flat.padded_numel;
  const auto limit_numel = [&](std::int64_t bytes) { return numel * bytes / kReadAndWritten / 16 * 16; };
  const std::int64_t updated = limit_numel(kUpdatedBytes), most = limit_numel(kUpdatedBytes + 4);
  const Streams streams(most, 3);
  Pairs updates({"limit", "device", "host_in_order", "host"}), phases({"limit", "host"});
  for (auto round : state) {
    updates.add(0, seconds_of([&] { read_and_write(threads, streams, updated); }));
    phases.add(0, seconds_of([&] { read_and_write(threads, streams, most); }));
    for (std::size_t contender = 0; contender < trainers.size(); ++contender) {
      train(*trainers[contender], batch);
      const auto [phase, update] = update_seconds(trainers[contender]->engine());
      updates.add(contender + 1, update);
      if (contender == 2) phases.add(1, phase);
      state.SetIterationTime(phase);
    }
  }
  updates.report(state, static_cast<double>(numel * kUpdatedBytes) * 1e-9, "GB/s");
  state.counters["host with copies/limit"] = phases.ratio(1);
}

// Each contender is run by both ranks' threads at once, from one barrier to the next.
void two_ranks(benchmark::State& state) {
  const DType type = type_of(state);
  // As many tokens a step as with one rank where sequences can be dealt out.
  const BatchShape batch{.sequences = std::max<std::int64_t>(1, 128 / state.range(1)),
                         .length = state.range(1)};
  const Gpt2Config config;
  const auto model = std::make_shared<const Model>(make_gpt2(config, type));
  Pairs pairs({"matmuls", "independent", "stage3"});
  run_local(2, {.pin = true}, [&](Communicator world) {
    MatmulStep matmuls(config, batch, type, 1);
    Trainer alone(make_local_world(1)[0], model, options_of(batch, 1, 0, 1));
    Trainer sharded(world.duplicate("sharded"), model, options_of(batch, 2, 3, 1));
    Communicator turns = world.duplicate("turns");
    turns.set_deadline(std::chrono::minutes(2));
    const auto together = [&](const auto& function) {
      turns.barrier();
      return seconds_of([&] {
        function();
        turns.barrier();
      });
    };
    const auto round = [&](bool counted) {
      const double seconds[] = {together([&] { matmuls.run(); }), together([&] { train(alone, batch); }),
                                together([&] { train(sharded, batch); })};
      if (!counted || world.rank() != 0) return;
      for (std::size_t contender = 0; contender < 3; ++contender) pairs.add(contender, seconds[contender]);
      state.SetIterationTime(seconds[2]);
    };
    round(false);
    if (world.rank() == 0)
      for (auto iteration : state) round(true);
    else
      for (benchmark::IterationCount i = 0; i < state.max_iterations; ++i) round(true);
  });
  pairs.report(state, static_cast<double>(2 * batch.tokens()), "tokens/s");
  state.counters["stage3/independent"] = pairs.ratio(2, 1);
}

void arguments(benchmark::internal::Benchmark* benchmark) {
  benchmark->ArgNames({"bits", "length"})
      ->ArgsProduct({{32, 16}, {256, 64}})
      ->Iterations(5)
      ->UseManualTime()
      ->Unit(benchmark::kMillisecond);
}

BENCHMARK(one_rank)->Apply(arguments);
BENCHMARK(recompute)->Apply(arguments)->Iterations(25);
BENCHMARK(two_ranks)->Apply(arguments);
BENCHMARK(host_update)->Iterations(15)->UseManualTime()->Unit(benchmark::kMillisecond);
BENCHMARK(offload)
    ->ArgNames({"bits", "length"})
    ->Args({16, 256})
    ->Iterations(7)
    ->UseManualTime()
    ->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace tessera

BENCHMARK_MAIN();
