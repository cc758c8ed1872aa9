// One rank on a GPU: the bitwise matrix of what one rank can vary, and beside the same run on the CPU, whose
// sums have another order. Skips, saying why, where there is no GPU.
#include <gtest/gtest.h>

#include <cmath>
#include <tuple>

#include "tessera/arrays.h"
#include "tessera/machine.h"
#include "tessera/simulate.h"
#include "tests/engine/looking_reader.h"
#include "tests/engine/matrix.h"
#include "tests/engine/trace.h"

namespace tessera::testing {
namespace {

using Cell = std::tuple<Family, DType, int>;

class CudaMatrix : public ::testing::TestWithParam<Cell> {
 protected:
  void SetUp() override {
    if (const std::string why = read_cuda_machine().unusable; !why.empty()) GTEST_SKIP() << why;
  }
  static RunConfig base() {
    const auto [family, dtype, microbatches] = GetParam();
    return {.family = family,
            .dtype = dtype,
            .prefetch = 0,
            .strict_order = true,
            .microbatches = microbatches,
            .steps = 4,
            .device = DeviceType::cuda};
  }
  static double tolerance() { return std::get<DType>(GetParam()) == DType::fp32 ? 1e-4 : 2e-2; }
};

TEST_P(CudaMatrix, EveryRunHasTheSameBits) {
  const RunResult expected = run_training(base());
  EXPECT_LT(expected.losses.back(), expected.losses.front()) << "the reference run does not learn";
  EXPECT_TRUE(same_bits(run_training(base()), expected)) << "the same run again";
  for (const bool poison : {false, true})
    for (const Recompute recompute : {Recompute::none, Recompute::full}) {
      RunConfig run = base();
      run.strict_order = false;
      run.prefetch = 1;
      run.recompute = recompute;
      run.poison = run.guards = poison;
      EXPECT_TRUE(same_bits(run_training(run), expected)) << to_string(run) << (poison ? " poison" : "");
    }
}

// The host's update and the GPU's are the same math.
TEST_P(CudaMatrix, WhatIsOffTheGpuChangesNoBit) {
  RunConfig whole = base();
  whole.steps = 2;
  const RunResult expected = run_training(whole);
  for (const Offload& offload :
       {Offload{.states = Space::host}, Offload{.states = Space::disk},
        Offload{.states = Space::host, .states_on_device = 0.5},
        Offload{.states = Space::host, .parameters = Space::host},
        Offload{.states = Space::disk, .parameters = Space::disk}, Offload{.parameters = Space::host}}) {
    RunConfig run = whole;
    run.stage = 3;
    run.strict_order = false;
    run.prefetch = 1;
    run.poison = run.guards = true;
    run.offload = offload;
    EXPECT_TRUE(same_bits(run_training(run), expected)) << to_string(run);
  }
}

TEST_P(CudaMatrix, UpdatesAsSoonAsGradientsAreReducedChangeNoBit) {
  RunConfig decided = base();
  decided.steps = 2;
  decided.max_norm = 0;
  const RunResult expected = run_training(decided);
  for (const Space states : {Space::device, Space::host}) {
    RunConfig run = decided;
    run.strict_order = false;
    run.prefetch = 1;
    run.poison = run.guards = true;
    run.offload.states = states;
    run.update = UpdateWhen::reduced;
    EXPECT_TRUE(same_bits(run_training(run), expected)) << to_string(run);
  }
}

TEST_P(CudaMatrix, UpdatesOfTheNextStepChangeNoBit) {
  RunConfig run = base();
  run.steps = 2;
  const RunResult expected = run_training(run);
  run.strict_order = false;
  run.prefetch = 1;
  run.poison = true;
  run.offload.states = Space::host;
  run.update = UpdateWhen::next;
  EXPECT_TRUE(same_bits(run_training(run), expected)) << to_string(run);
}

// cuDNN computes attention only where it drops nothing.
TEST_P(CudaMatrix, LossesAndNormsAreNearThoseOfTheCpu) {
  for (const double attention_dropout : {kAttentionDropout, 0.0}) {
    RunConfig on_gpu = base();
    on_gpu.attention_dropout = attention_dropout;
    RunConfig on_cpu = on_gpu;
    on_cpu.device = DeviceType::cpu;
    const RunResult expected = run_training(on_cpu), found = run_training(on_gpu);
    EXPECT_TRUE(same_bits(run_training(on_gpu), found)) << "the same run again";
    ASSERT_EQ(found.losses.size(), expected.losses.size());
    for (std::size_t step = 0; step < expected.losses.size(); ++step) {
      EXPECT_NEAR(found.losses[step], expected.losses[step], tolerance() * expected.losses[step]) << step;
      // Differences of rounding grow with every update.
      EXPECT_NEAR(found.norms[step], expected.norms[step], 10 * tolerance() * expected.norms[step]) << step;
    }
  }
}

TEST_P(CudaMatrix, AdaptersChangeNoBitAndAreNearThoseOfTheCpu) {
  RunConfig run = base();
  run.lora_rank = 8;
  const RunResult found = run_training(run);
  RunConfig other = run;
  other.stage = 3;
  other.strict_order = false;
  other.prefetch = 1;
  other.recompute = Recompute::selective;
  other.poison = true;
  EXPECT_TRUE(same_bits(run_training(other), found)) << to_string(other);
  run.device = DeviceType::cpu;
  const RunResult expected = run_training(run);
  for (std::size_t step = 0; step < expected.losses.size(); ++step) {
    EXPECT_NEAR(found.losses[step], expected.losses[step], tolerance() * expected.losses[step]) << step;
    EXPECT_NEAR(found.norms[step], expected.norms[step], 10 * tolerance() * expected.norms[step]) << step;
  }
}

TEST_P(CudaMatrix, LogitsAreNearThoseOfTheCpu) {
  const std::vector<std::int32_t> prompt = {3, 1, 4, 1, 5, 9, 2, 6};
  const auto logits_on = [&](DeviceType device) {
    RunConfig run = base();
    run.device = device;
    TrainerOptions options = trainer_options(run);
    options.generation = true;
    Trainer trainer(make_local_world(1)[0], std::make_shared<const Model>(small_model(run)), options);
    return trainer.logits(prompt);
  };
  const std::vector<float> expected = logits_on(DeviceType::cpu), found = logits_on(DeviceType::cuda);
  ASSERT_EQ(found.size(), expected.size());
  float largest = 0;
  for (const float logit : expected) largest = std::max(largest, std::abs(logit));
  for (std::size_t k = 0; k < expected.size(); ++k)
    EXPECT_NEAR(found[k], expected[k], tolerance() * largest) << k;
}

// Marks of the GPU, and of the host where it updates.
TEST(CudaEngine, TracesSayWhatItsLanesDid) {
  if (const std::string why = read_cuda_machine().unusable; !why.empty()) GTEST_SKIP() << why;
  for (const Space states : {Space::device, Space::host}) {
    RunConfig run{.stage = 3, .microbatches = 2, .device = DeviceType::cuda};
    run.offload.states = states;
    const TrainerOptions options = trainer_options(run);
    Trainer trainer(make_local_world(1)[0], std::make_shared<const Model>(small_model(run)), options);
    const auto step = [&](int number) {
      const BatchShape& shape = options.batch;
      EXPECT_TRUE(trainer.train_step(1e-3, fetch_samples(0, 1, run.microbatches, number, 61, shape)).applied);
    };
    Engine& engine = trainer.engine();
    step(0);
    EXPECT_TRUE(engine.trace().empty());
    for (int number = 1; number < 4; ++number) {
      engine.set_tracing(true);
      step(number);
      expect_in_order(engine, engine.program(0));
    }
    engine.set_tracing(false);
    step(4);
    EXPECT_TRUE(engine.trace().empty());
  }
}

// By several threads, and a stream of their own, while a step computes.
TEST(CudaEngine, StatesAreReadBesideAStep) {
  if (const std::string why = read_cuda_machine().unusable; !why.empty()) GTEST_SKIP() << why;
  for (const Space states : {Space::device, Space::host}) {
    RunConfig run{.dtype = DType::bf16, .microbatches = 2, .device = DeviceType::cuda};
    run.offload.states = states;
    const TrainerOptions options = trainer_options(run);
    Trainer trainer(make_local_world(1)[0], std::make_shared<const Model>(small_model(run)), options);
    const auto fetch = [&](int microbatch, void* batch) {
      auto* const tokens = static_cast<std::int32_t*>(batch);
      for (std::int64_t k = 0; k < 2 * options.batch.tokens(); ++k)
        tokens[k] = static_cast<std::int32_t>((k * 7 + microbatch) % 5);
    };
    trainer.train_step(1e-3, fetch);
    Engine& engine = trainer.engine();
    for (FlatId flat = 0; flat < static_cast<FlatId>(engine.layout().flats().size()); ++flat)
      for (const StateKind state :
           {StateKind::parameter, StateKind::master, StateKind::moment1, StateKind::moment2})
        if (engine.persistent_bytes(flat, state) > 0) {
          EXPECT_TRUE(engine.persistent(flat, state).empty() ||
                      engine.persistent_space(flat, state) == Space::host);
        }
    for (int step = 0; step < 2; ++step) {
      const auto readers = {add_reader(engine), add_reader(engine)};
      EXPECT_TRUE(trainer.train_step(1e-2, fetch).applied);
      for (const auto& reader : readers) {
        EXPECT_TRUE(reader->same);
        EXPECT_GE(reader->times, 1);
        EXPECT_FALSE(reader->unchanged()) << "the step changes nothing";
      }
    }
  }
}

// Of the GPUs that are here, each that can, and each that cannot.
TEST(CudaEngine, ProductsInFp8NeedHopper) {
  const CudaMachine machine = read_cuda_machine();
  if (!machine.unusable.empty()) GTEST_SKIP() << machine.unusable;
  RunConfig run = {.dtype = DType::bf16, .steps = 4, .fp8_products = true};
  const RunResult on_cpu = run_training(run);
  run.device = DeviceType::cuda;
  for (run.gpu = 0; run.gpu < std::min<int>(2, static_cast<int>(machine.gpus.size())); ++run.gpu) {
    const CudaGpu& gpu = machine.gpus[static_cast<std::size_t>(run.gpu)];
    if (gpu.major >= 9) {
      EXPECT_LT(furthest(run_training(run).losses, on_cpu.losses), 2e-2) << gpu.name;
      continue;
    }
    try {
      run_training(run);
      ADD_FAILURE() << gpu.name << " is taken";
    } catch (const UnsupportedError& error) {
      for (const std::string& word :
           {"GPU " + std::to_string(run.gpu) + " (" + gpu.name + ") has compute capability",
            std::string("multiplies in fp8"), std::string("needs 9.0 or later")})
        EXPECT_NE(std::string(error.what()).find(word), std::string::npos) << error.what();
    }
  }
}

TEST(CudaEngine, TwoRanksAreRefused) {
  run_local(2, {}, [](Communicator world) {
    RunConfig run{.world = 2, .device = DeviceType::cuda};
    const auto model = std::make_shared<const Model>(small_model(run));
    try {
      Trainer trainer(world, model, trainer_options(run));
      FAIL() << "two ranks were made on a GPU";
    } catch (const UnsupportedError& error) {
      EXPECT_NE(std::string(error.what()).find("use one rank"), std::string::npos) << error.what();
    }
  });
}

std::string cell_name(const ::testing::TestParamInfo<Cell>& info) {
  const auto& [family, dtype, microbatches] = info.param;
  return std::string(family == Family::llama ? "llama" : "gpt2") + "_" + std::string(name_of(dtype)) + "_" +
         std::to_string(microbatches);
}

INSTANTIATE_TEST_SUITE_P(Models, CudaMatrix,
                         ::testing::Combine(::testing::Values(Family::gpt2, Family::llama),
                                            ::testing::Values(DType::fp32, DType::bf16),
                                            ::testing::Values(1, 2)),
                         cell_name);

// A base is an address to count from: of the second part, the GPU's own memory begins one part behind it.
TEST(CudaArrays, HaveBasesOnTheDevice) {
  if (const std::string why = read_cuda_machine().unusable; !why.empty()) GTEST_SKIP() << why;
  run_local(1, {}, [](Communicator world) {
    constexpr std::size_t kPart = 100;
    EngineOptions options;
    options.device = DeviceType::cuda;
    ArrayEngine model(world, {{.name = "a", .numel = 3 * kPart, .units = 3}}, options);
    std::vector<float*> parameters(1), gradients(1);
    model.bind(parameters, gradients);
    std::vector<float> values(3 * kPart), found(kPart);
    for (std::size_t k = 0; k < values.size(); ++k) values[k] = static_cast<float>(k);
    model.write(values);
    model.engine().begin(StepKind::train);
    for (int unit = 0; unit < 3; ++unit) model.enter(unit, Pass::forward);
    const auto bytes = static_cast<std::int64_t>(kPart * sizeof(float));
    for (int unit = 2; unit >= 0; --unit) {
      model.enter(unit, Pass::backward);
      const std::size_t first = static_cast<std::size_t>(unit) * kPart;
      model.engine().transfer(found.data(), parameters[0] + first, bytes);
      EXPECT_EQ(found, std::vector<float>(values.begin() + unit * 100, values.begin() + (unit + 1) * 100));
      model.engine().transfer(found.data(), gradients[0] + first, bytes);
      EXPECT_EQ(found, std::vector<float>(kPart)) << "gradients begin at 0";
      for (float& value : found) value = 1;
      model.engine().transfer(gradients[0] + first, found.data(), bytes);
    }
    EXPECT_TRUE(model.step_mean(0.5, 1.0).applied);
    std::vector<float> after(values.size());
    model.read(after);
    for (std::size_t k = 0; k < after.size(); ++k) ASSERT_LT(after[k], values[k] + (k == 0 ? 0.0f : -0.1f));
  });
}

}  // namespace
}  // namespace tessera::testing
