// The C API given what means nothing: a status and a message, never a crash.
#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <limits>

#include "tests/engine/c_try.h"

namespace tessera::testing {
namespace {

constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();

::testing::AssertionResult refused(tessera_status status, const char* part) {
  if (status == TESSERA_USAGE && std::strstr(tessera_last_error(), part) != nullptr)
    return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << "status " << status << ": " << tessera_last_error();
}

tessera_status make_engine(tessera_world* world, const tessera_options& options, tessera_engine** engine) {
  const std::int64_t five = 5;
  const tessera_parameter weight{"weight", &five, 1, TESSERA_FP32, 0, 0, nullptr, nullptr, 0};
  const tessera_unit unit{"unit", &weight, 1, 0, 0, 0, 0, 0, 0};
  return tessera_engine_create(world, &unit, 1, &options, engine);
}

TEST(CMisuse, NullEngines) {
  const tessera_step_inputs inputs{.learning_rate = 0.1, .weight = 1.0, .loss = 0.0};
  tessera_step_result result{};
  for (tessera_step_result* out : {static_cast<tessera_step_result*>(nullptr), &result}) {
    EXPECT_TRUE(refused(tessera_step(nullptr, &inputs, out), "engine is null"));
    EXPECT_TRUE(refused(tessera_abandon(nullptr, out), "engine is null"));
  }
  EXPECT_TRUE(refused(tessera_step(nullptr, nullptr, nullptr), "inputs is null"));
}

tessera_status ask_for_uses(tessera_world* world, void*) {
  tessera_options options;
  tessera_engine* engine = nullptr;
  const tessera_scheduled_use* uses = nullptr;
  std::int32_t count = 0;
  TRY(tessera_options_init(&options, sizeof options));
  TRY(make_engine(world, options, &engine));
  EXPECT_TRUE(refused(tessera_scheduled_uses(engine, &uses, &count), "no step is running"));
  TRY(tessera_begin(engine, TESSERA_TRAIN, 1));
  TRY(tessera_scheduled_uses(engine, &uses, &count));
  EXPECT_EQ(count, 2);
  TRY(tessera_abandon(engine, nullptr));
  EXPECT_TRUE(refused(tessera_scheduled_uses(engine, &uses, &count), "no step is running"));
  return tessera_engine_destroy(engine);
}

TEST(CMisuse, UsesWithoutAStep) {
  EXPECT_EQ(tessera_run_ranks(1, 20'000, ask_for_uses, nullptr), TESSERA_OK) << tessera_last_error();
}

tessera_status read_far_away(tessera_world* world, void*) {
  tessera_options options;
  tessera_engine* engine = nullptr;
  std::array<float, 10> values{};
  TRY(tessera_options_init(&options, sizeof options));
  TRY(make_engine(world, options, &engine));
  const tessera_status status = tessera_read(engine, 0, TESSERA_MASTER, kMost - 3, values.data(), 10);
  EXPECT_TRUE(refused(status, "10 elements from 9223372036854775804"));
  TRY(tessera_engine_destroy(engine));
  return status;
}

TEST(CMisuse, RangesThatOverflow) {
  for (const int ranks : {1, 2})
    EXPECT_EQ(tessera_run_ranks(ranks, 20'000, read_far_away, nullptr), TESSERA_USAGE);
}

tessera_status make_impossible_engines(tessera_world* world, void*) {
  tessera_options defaults;
  tessera_engine* engine = nullptr;
  TRY(tessera_options_init(&defaults, sizeof defaults));
  for (const std::int32_t most : {65536, std::numeric_limits<std::int32_t>::max()}) {
    tessera_options options = defaults;
    options.pipeline = options.replicate = most;
    EXPECT_TRUE(refused(make_engine(world, options, &engine), "1048576 or less"));
    options.shard = most;
    EXPECT_TRUE(refused(make_engine(world, options, &engine), "1048576 or less"));
  }
  tessera_options options = defaults;
  options.device_memory_bytes = 300;
  options.external_bytes = kMost;
  EXPECT_TRUE(refused(make_engine(world, options, &engine), "external bytes"));
  EXPECT_TRUE(refused(make_engine(world, options, &engine), "device_memory_bytes is 300 bytes"));
  options.external_bytes = -1;
  EXPECT_TRUE(refused(make_engine(world, options, &engine), "external_bytes is -1 bytes"));
  options = defaults;
  options.deadline_ms = -1;
  EXPECT_TRUE(refused(make_engine(world, options, &engine), "deadline_ms is -1"));
  options = defaults;
  options.recompute = 3;
  EXPECT_TRUE(refused(make_engine(world, options, &engine), "recompute 3 is not known; use 0 to 2"));
  options = defaults;
  options.activations = TESSERA_DISK;
  EXPECT_TRUE(refused(make_engine(world, options, &engine), "activations 2 is not known; use 0 to 1"));
  options = defaults;
  options.initial_loss_scale = 1024;
  options.loss_scale_growth_interval = 0;
  EXPECT_TRUE(refused(make_engine(world, options, &engine), "growth_interval = 0 must be at least 1"));
  options.loss_scale_growth_interval = 1;
  options.max_loss_scale = 512;
  EXPECT_TRUE(refused(make_engine(world, options, &engine), "initial = 1024"));
  EXPECT_EQ(engine, nullptr);
  return TESSERA_OK;
}

TEST(CMisuse, Options) {
  EXPECT_EQ(tessera_run_ranks(1, 20'000, make_impossible_engines, nullptr), TESSERA_OK)
      << tessera_last_error();
}

tessera_status make_impossible_cuts(tessera_world* world, void*) {
  tessera_options options;
  TRY(tessera_options_init(&options, sizeof options));
  options.tensor = 2;
  const auto refusal_of = [&](tessera_parameter parameter) {
    const std::array<std::int64_t, 2> shape{6, 5};
    parameter.name = "weight";
    parameter.shape = shape.data();
    parameter.dims = 2;
    tessera_unit unit = {};
    unit.name = "unit";
    unit.parameters = &parameter;
    unit.parameter_count = 1;
    tessera_engine* engine = nullptr;
    return tessera_engine_create(world, &unit, 1, &options, &engine);
  };
  const auto refusal_of_cut = [&](const tessera_cut& cut, std::int32_t gradient = 0) {
    tessera_parameter parameter = {};
    parameter.cut = &cut;
    parameter.gradient_over_tensor = gradient;
    return refusal_of(parameter);
  };
  const std::array<std::int64_t, 2> uneven{3, 3}, short_of_one{2, 3};
  EXPECT_TRUE(refused(refusal_of_cut({-1, 0, nullptr, 0}), "tessera_cut.dim of 'weight' is -1"));
  EXPECT_TRUE(refused(refusal_of_cut({2, 0, nullptr, 0}), "weight"));
  EXPECT_TRUE(refused(refusal_of_cut({1, 0, nullptr, 0}), "weight"));
  EXPECT_TRUE(refused(refusal_of_cut({0, 0, nullptr, 2}), "tessera_cut.segments is null"));
  EXPECT_TRUE(refused(refusal_of_cut({0, 0, uneven.data(), 2}), "weight"));
  EXPECT_TRUE(refused(refusal_of_cut({0, 0, short_of_one.data(), 2}), "weight"));
  EXPECT_TRUE(refused(refusal_of_cut({0, 1, uneven.data(), 2}), "weight"));
  EXPECT_TRUE(
      refused(refusal_of_cut({0, 0, nullptr, 0}, TESSERA_GRADIENT_PARTIAL),
              "gradient_over_tensor of 'weight' is TESSERA_GRADIENT_PARTIAL, but the parameter is cut"));
  tessera_parameter parameter = {};
  parameter.gradient_over_tensor = 2;
  EXPECT_TRUE(refused(refusal_of(parameter), "gradient_over_tensor 2 is not known; use 0 to 1"));
  parameter.gradient_over_tensor = TESSERA_GRADIENT_PARTIAL;
  parameter.frozen = 1;
  EXPECT_TRUE(refused(refusal_of(parameter), "frozen and has no gradient"));
  options.tensor = 3;
  EXPECT_TRUE(refused(refusal_of({}), "tensor 3 do not divide 2 ranks"));
  options.tensor = -2;
  EXPECT_TRUE(refused(refusal_of({}), "tensor"));
  return TESSERA_OK;
}

TEST(CMisuse, Cuts) {
  EXPECT_EQ(tessera_run_ranks(2, 20'000, make_impossible_cuts, nullptr), TESSERA_OK) << tessera_last_error();
}

// What a lease's collectives are given that means nothing; `which` tells the cases apart.
struct WrongCall {
  std::int32_t splits_layers = 1;
  int which = 0;
  const char* expected = nullptr;
};

tessera_status call_wrongly(tessera_world* world, void* user) {
  const auto& wrong = *static_cast<const WrongCall*>(user);
  tessera_options options;
  tessera_engine* engine = nullptr;
  tessera_lease* lease = nullptr;
  std::array<float, 8> values{};
  TRY(tessera_options_init(&options, sizeof options));
  TRY(tessera_world_ranks(world, &options.tensor));
  options.splits_layers = wrong.splits_layers;
  TRY(make_engine(world, options, &engine));
  TRY(tessera_begin(engine, TESSERA_TRAIN, 1));
  TRY(tessera_use_unit(engine, 0, TESSERA_FORWARD, &lease));
  const auto call = [&]() -> tessera_status {
    switch (wrong.which) {
      case 0:
        return tessera_lease_all_reduce(lease, nullptr, 1);
      case 1:
        return tessera_lease_all_reduce(lease, values.data(), -1);
      case 2:
        return tessera_lease_all_gather(lease, values.data() + 1, values.data(), 8);
      case 3:
        return tessera_lease_reduce_scatter(lease, values.data(), 9, values.data() + 4, 1);
      case 4:
        return tessera_lease_all_reduce(nullptr, values.data(), 1);
      default:
        TRY(tessera_lease_end(lease));
        return tessera_lease_all_reduce(lease, values.data(), 1);
    }
  };
  const tessera_status status = call();
  EXPECT_TRUE(refused(status, wrong.expected));
  tessera_engine_destroy(engine);
  return status;
}

TEST(CMisuse, CollectivesOfALease) {
  for (const int ranks : {1, 2})
    for (WrongCall wrong :
         {WrongCall{1, 0, "all_reduce of 1 elements at a null pointer"},
          WrongCall{1, 1, "all_reduce of -1 elements"}, WrongCall{1, 2, "overlaps the full buffer"},
          WrongCall{1, 3, "dtype 9 is not known; use 0 to 2"}, WrongCall{1, 4, "lease is null"},
          WrongCall{1, 5, "the lease has ended"}, WrongCall{0, 1, "splits_layers is false"}})
      EXPECT_EQ(tessera_run_ranks(ranks, 20'000, call_wrongly, &wrong), TESSERA_USAGE) << wrong.which;
}

TEST(CMisuse, TheLongestDeadlineIsLong) {
  const auto meet = [](tessera_world* world, void*) -> tessera_status {
    tessera_options options;
    tessera_engine* engine = nullptr;
    TRY(tessera_options_init(&options, sizeof options));
    options.deadline_ms = kMost;
    TRY(make_engine(world, options, &engine));
    return tessera_engine_destroy(engine);
  };
  EXPECT_EQ(tessera_run_ranks(2, kMost, meet, nullptr), TESSERA_OK) << tessera_last_error();
}

}  // namespace
}  // namespace tessera::testing
