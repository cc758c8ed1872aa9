// After the first step of each program nothing is allocated: not by the engine at all, and in a training run
// nothing of a tensor's size.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "tessera/model.h"
#include "tessera/trainer.h"
#include "tests/engine/toy.h"
#include "tests/engine/watch_allocations.h"
#include "tests/program/sanitized.h"

namespace tessera::testing {
namespace {

// Watches between two barriers, so that every rank is past its set-up and none is ending.
Allocations watch(Communicator& world, const std::function<void()>& body) {
  world.barrier();
  if (world.rank() == 0) watch_allocations();
  world.barrier();
  body();
  world.barrier();
  const Allocations seen = world.rank() == 0 ? stop_watching() : Allocations{};
  world.barrier();
  return seen;
}

TEST(Allocations, AreCounted) {
  if (kSanitized) GTEST_SKIP() << "the sanitizer has an allocator of its own";
  watch_allocations();
  void* volatile a = std::malloc(5000);
  void* volatile b = ::operator new(16);
  const Allocations seen = stop_watching();
  std::free(a);
  ::operator delete(b);
  EXPECT_EQ(seen.large, 1);
  EXPECT_EQ(seen.small, 1);
  EXPECT_EQ(seen.largest_bytes, 5000);
}

void quiet_uses(Engine& engine, int microbatches, StepKind kind) {
  for (int microbatch = 0; microbatch < microbatches; ++microbatch) {
    for (UnitId unit = 0; unit <= kHead; ++unit) engine.use(unit, Pass::forward).end();
    if (kind == StepKind::evaluate) continue;
    for (UnitId unit = kHead; unit >= 0; --unit) {
      if (unit == kBlock1) {
        engine.skip(unit, Pass::backward);
        continue;
      }
      UnitLease lease = engine.use(unit, Pass::backward);
      const ParameterId first = engine.layout().first_parameter(unit);
      const std::size_t count = engine.layout().units()[unit].parameters.size();
      for (ParameterId id = first; id < first + static_cast<ParameterId>(count); ++id) {
        if (!engine.layout().parameter(id).trainable) continue;
        const TensorView view = lease.gradient(id);
        if (lease.gradient_beta(id) == 0.0f)
          std::memset(view.data, 0, static_cast<std::size_t>(view.numel * bytes_of(view.dtype)));
      }
      lease.end();
    }
  }
}

TEST(Allocations, TheEngineMakesNoneAfterTheFirstStep) {
  for (int stage = 0; stage <= 3; ++stage)
    for (const auto& [strict, traced] : {std::pair{false, false}, {false, true}, {true, false}, {true, true}})
      run_local(2, kBlocking, [&](Communicator world) {
        EngineOptions options = toy_options(2, stage);
        options.debug.strict_order = strict;
        options.programs = {{.kind = StepKind::train, .microbatches = 2}, {.kind = StepKind::evaluate}};
        Engine engine(world, toy_units(DType::bf16), options);
        engine.initialize(toy_fill());
        engine.set_tracing(traced);
        const auto round = [&] {
          engine.begin(StepKind::train, 2);
          quiet_uses(engine, 2, StepKind::train);
          (void)engine.step({.learning_rate = 0.1});
          engine.begin(StepKind::evaluate);
          quiet_uses(engine, 1, StepKind::evaluate);
          (void)engine.step({});
          engine.begin(StepKind::train, 2);
          engine.abandon();
        };
        round();
        const Allocations seen = watch(world, [&] {
          for (int k = 0; k < 5; ++k) round();
        });
        EXPECT_EQ(seen.large, 0) << "stage " << stage << (strict ? " strict" : "")
                                 << (traced ? " traced" : "");
        EXPECT_EQ(seen.small, 0) << "stage " << stage << (strict ? " strict" : "")
                                 << (traced ? " traced" : "");
      });
}

// oneDNN copies operands together in memory that it takes by itself where it multiplies by its older kernels.
bool products_take_memory() {
#if defined(__x86_64__)
  return __builtin_cpu_supports("avx512bw") == 0;
#else
  return true;
#endif
}

TEST(Allocations, ATrainingRunMakesNoneOfATensorsSize) {
  if (products_take_memory()) GTEST_SKIP() << "without AVX-512 oneDNN's products take memory of their own";
  for (DType type : {DType::fp32, DType::bf16})
    for (int stage : {0, 3}) {
      const auto model = std::make_shared<const Model>(
          make_gpt2({.vocabulary = 256, .context = 64, .layers = 2, .heads = 2, .channels = 64}, type));
      run_local(2, kBlocking, [&](Communicator world) {
        TrainerOptions options;
        options.engine = toy_options(2, stage);
        options.engine.optimizer.groups = {{.name = "decay"}, {.name = "no_decay", .weight_decay = 0.0}};
        options.engine.clip.max_norm = 1.0;
        options.batch = {.sequences = 2, .length = 64};
        options.microbatches = 2;
        Trainer trainer(world, model, options);
        const Trainer::Fetch fetch = [&](int microbatch, void* batch) {
          auto* tokens = static_cast<std::int32_t*>(batch);
          for (std::int64_t k = 0; k < 2 * options.batch.tokens(); ++k)
            tokens[k] = static_cast<std::int32_t>((k * 7 + microbatch + world.rank()) % 256);
        };
        const auto round = [&] {
          EXPECT_TRUE(trainer.train_step(1e-3, fetch).applied);
          trainer.evaluate(fetch);
        };
        round();
        constexpr int kRounds = 3;
        const Allocations seen = watch(world, [&] {
          for (int k = 0; k < kRounds; ++k) round();
        });
        EXPECT_EQ(seen.large, 0) << "the largest has " << seen.largest_bytes << " bytes";
        if (world.rank() == 0)
          std::printf(
              "%s, stage %d: %.0f small allocations a step and evaluation on two ranks, the largest of "
              "%lld bytes\n",
              std::string(name_of(type)).c_str(), stage, static_cast<double>(seen.small) / kRounds,
              static_cast<long long>(seen.largest_bytes));
      });
    }
}

}  // namespace
}  // namespace tessera::testing
