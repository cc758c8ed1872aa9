// The C API: the bits of the C++ engine, errors as status and message, and nothing thrown.
#include "tessera/c_api.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstring>
#include <stdexcept>

#include "tessera/machine.h"
#include "tests/comm/gpus.h"
#include "tests/engine/c_try.h"
#include "tests/engine/toy.h"

namespace tessera::testing {
namespace {

constexpr int kRanks = 2, kSteps = 3, kMicrobatches = 2;

struct Record {
  int stage = 0;
  int update = TESSERA_UPDATE_DECIDED;
  int ranks = kRanks;
  int moment_type = TESSERA_FP32;
  int optimizer = TESSERA_ADAMW;
  bool add_loss = false;                          // rather than give it to tessera_step
  std::vector<double> losses = {}, norms = {};    // by rank 0
  std::vector<float> weight = {}, gradient = {};  // of the first parameter; the gradient of the last step
};

void record(Record& run, double loss, double norm) {
  run.losses.push_back(loss);
  run.norms.push_back(norm);
}

// The same toy in both languages: two units, the second tied to the first's weight, a parameter of group 1.
std::vector<UnitSpec> cpp_units() {
  return {
      {.name = "a",
       .parameters = {{.name = "a.weight", .shape = {30, 7}}, {.name = "a.bias", .shape = {7}, .group = 1}}},
      {.name = "b",
       .parameters = {{.name = "b.weight", .shape = {30, 7}, .tied_to = "a.weight"},
                      {.name = "b.half", .shape = {129}, .dtype = DType::bf16},
                      {.name = "b.frozen", .shape = {5}, .trainable = false}}}};
}

struct CUnits {
  std::array<std::int64_t, 2> matrix{30, 7};
  std::int64_t seven = 7, half = 129, five = 5;
  std::array<tessera_parameter, 2> a{{{"a.weight", matrix.data(), 2, TESSERA_FP32, 0, 0, nullptr, nullptr, 0},
                                      {"a.bias", &seven, 1, TESSERA_FP32, 0, 1, nullptr, nullptr, 0}}};
  std::array<tessera_parameter, 3> b{
      {{"b.weight", matrix.data(), 2, TESSERA_FP32, 0, 0, "a.weight", nullptr, 0},
       {"b.half", &half, 1, TESSERA_BF16, 0, 0, nullptr, nullptr, 0},
       {"b.frozen", &five, 1, TESSERA_FP32, 1, 0, nullptr, nullptr, 0}}};
  std::array<tessera_unit, 2> units{
      {{"a", a.data(), 2, 0, 0, 0, 0, 0, 0}, {"b", b.data(), 3, 0, 0, 0, 0, 0, 0}}};
};
const std::array<std::vector<int>, 2> kTrainable{{{0, 1}, {2, 3}}};

// Reads and writes what a lease gives, so that parameters enter the gradients and the losses. Multiples of
// small powers of two would hide a wrong order of sums.
float mixed(int rank, int step, std::int64_t k) {
  return std::sin(static_cast<float>(rank * 31 + step * 7 + k));
}

double add_gradient(const void* parameter, void* gradient, std::int64_t numel, DType type, float beta,
                    float scale) {
  std::vector<float> p(static_cast<std::size_t>(numel)), g(p);
  kernels::cast({}, numel, type, parameter, DType::fp32, p.data());
  if (beta != 0) kernels::cast({}, numel, type, gradient, DType::fp32, g.data());
  double loss = 0;
  for (std::size_t k = 0; k < p.size(); ++k) {
    loss += 0.5 * p[k] * p[k];
    g[k] = (beta != 0 ? g[k] : 0.0f) + scale * p[k];
  }
  kernels::cast({}, numel, DType::fp32, g.data(), type, gradient);
  return loss;
}

void run_cpp(Record& run) {
  run_local(run.ranks, kBlocking, [&](Communicator world) {
    EngineOptions options = toy_options(run.ranks, run.stage);
    options.programs = {{.kind = StepKind::train, .microbatches = kMicrobatches}};
    options.clip.max_norm = run.update == TESSERA_UPDATE_REDUCED ? 0.0 : 1.0;
    options.optimizer.moment_type = static_cast<DType>(run.moment_type);
    if (run.optimizer == TESSERA_LION) options.optimizer.options = LionOptions{.weight_decay = 0.1};
    Engine engine(world, cpp_units(), options);
    engine.initialize(toy_fill());
    for (int step = 0; step < kSteps; ++step) {
      double loss = 0;
      engine.begin(StepKind::train, kMicrobatches);
      for (int microbatch = 0; microbatch < kMicrobatches; ++microbatch) {
        for (UnitId unit : {0, 1}) engine.use(unit, Pass::forward).end();
        for (UnitId unit : {1, 0}) {
          UnitLease lease = engine.use(unit, Pass::backward);
          for (int id : kTrainable[static_cast<std::size_t>(unit)]) {
            const TensorView p = lease.parameter(id), g = lease.gradient(id);
            loss += add_gradient(p.data, g.data, p.numel, p.dtype, lease.gradient_beta(id),
                                 mixed(world.rank(), step, id));
          }
          lease.end();
        }
      }
      std::vector<float> gradient(210);
      engine.read_gradient(0, 0, gradient);
      if (world.rank() == 0) run.gradient = gradient;
      const StepResult result = engine.step({.learning_rate = 0.01, .weight = 3.0, .loss = loss});
      if (world.rank() == 0) record(run, result.loss, result.gradient_norm);
    }
    std::vector<float> weight(210);
    engine.read(0, StateKind::master, 0, weight);
    if (world.rank() == 0) run.weight = weight;
  });
}

tessera_status c_fill(std::int32_t parameter, std::int64_t begin, float* values, std::int64_t numel, void*) {
  for (std::int64_t k = 0; k < numel; ++k) values[k] = toy_initial(parameter, begin + k);
  return TESSERA_OK;
}

tessera_status c_microbatch(tessera_engine* engine, int rank, int step, double& loss) {
  tessera_lease* lease = nullptr;
  for (int unit : {0, 1}) {
    TRY(tessera_use_unit(engine, unit, TESSERA_FORWARD, &lease));
    TRY(tessera_lease_end(lease));
  }
  for (int unit : {1, 0}) {
    TRY(tessera_use_unit(engine, unit, TESSERA_BACKWARD, &lease));
    for (int id : kTrainable[static_cast<std::size_t>(unit)]) {
      tessera_view p{}, g{};
      TRY(tessera_lease_parameter(lease, id, &p));
      TRY(tessera_lease_gradient(lease, id, &g));
      EXPECT_EQ(p.numel, g.numel);
      // On the host, wherever the views lie.
      const std::int64_t bytes = p.numel * bytes_of(static_cast<DType>(p.dtype));
      std::vector<std::byte> parameter(static_cast<std::size_t>(bytes)), gradient(parameter);
      TRY(tessera_transfer(engine, parameter.data(), p.data, bytes));
      TRY(tessera_transfer(engine, gradient.data(), g.data, bytes));
      loss += add_gradient(parameter.data(), gradient.data(), p.numel, static_cast<DType>(p.dtype), g.beta,
                           mixed(rank, step, id));
      TRY(tessera_upload(engine, g.data, gradient.data(), bytes));
    }
    TRY(tessera_lease_end(lease));
  }
  return TESSERA_OK;
}

tessera_status c_steps(tessera_engine* engine, int rank, Record& run) {
  TRY(tessera_initialize(engine, c_fill, nullptr));
  for (int step = 0; step < kSteps; ++step) {
    tessera_step_inputs inputs{.learning_rate = 0.01, .weight = 3.0, .loss = 0.0};
    tessera_step_result result{};
    if (run.update == TESSERA_UPDATE_REDUCED)
      TRY(tessera_begin_on_terms(engine, kMicrobatches, inputs.learning_rate, run.ranks * inputs.weight));
    else
      TRY(tessera_begin(engine, TESSERA_TRAIN, kMicrobatches));
    for (int microbatch = 0; microbatch < kMicrobatches; ++microbatch)
      TRY(c_microbatch(engine, rank, step, inputs.loss));
    const tessera_loss_total total{.sum = inputs.loss, .counted = 3};
    if (run.add_loss) {
      inputs.loss = inputs.weight = 0.0;
      TRY(tessera_add_loss(engine, &total));
    }
    if (run.update != TESSERA_UPDATE_REDUCED) {
      std::vector<float> gradient(210);
      TRY(tessera_read_gradient(engine, 0, 0, gradient.data(), 210));
      if (rank == 0) run.gradient = gradient;
    }
    TRY(tessera_step(engine, &inputs, &result));
    EXPECT_EQ(result.step, step + 1);
    EXPECT_EQ(result.applied, 1);
    EXPECT_STREQ(result.first_nonfinite, "");
    if (rank == 0) record(run, result.loss, result.gradient_norm);
  }
  std::vector<float> weight(210);
  std::int32_t id = -1;
  TRY(tessera_find_parameter(engine, "a.weight", &id));
  TRY(tessera_read(engine, id, TESSERA_MASTER, 0, weight.data(), 210));
  if (rank == 0) run.weight = weight;
  return TESSERA_OK;
}

const std::array<tessera_group, 2> kGroups{{{"decay", 0, 0, 0.0, 0.0}, {"no_decay", 1, 1, 0.0, 0.5}}};

struct Where {
  int stage = 0;
  int states = TESSERA_DEVICE, parameters = TESSERA_DEVICE;
  int update = TESSERA_UPDATE_DECIDED;
  int device = TESSERA_CPU;
  int ranks = kRanks;
  int evaluation = 0;
  int moment_type = TESSERA_FP32;
  int optimizer = TESSERA_ADAMW;
  int microbatches_per_step = 0;
  int blocks = 1;
};

// Why an engine cannot be there; empty where it can. One rank needs no NCCL.
std::string missing(const Where& where) {
  if (where.device == TESSERA_CPU) return "";
  return where.ranks > 1 ? contract::missing_gpus(where.ranks) : read_cuda_machine().unusable;
}

tessera_status make_engine(tessera_world* world, int rank, const Where& where, tessera_engine** engine) {
  tessera_options options;
  TRY(tessera_options_init(&options, sizeof options));
  options.stage = where.stage;
  options.states = where.states;
  options.parameters = where.parameters;
  options.disk_directory = "/tmp";
  options.microbatches = where.microbatches_per_step == 0 ? kMicrobatches : 1;
  options.microbatches_per_step = where.microbatches_per_step;
  options.blocks = where.blocks;
  options.weight_decay = 0.1;
  options.evaluation = where.evaluation;
  options.moment_type = where.moment_type;
  options.optimizer = where.optimizer;
  if (where.optimizer == TESSERA_LION) options.beta2 = 0.99;
  options.groups = kGroups.data();
  options.group_count = 2;
  options.update = where.update;
  options.device = where.device;
  options.device_ordinal = where.device == TESSERA_CUDA ? rank : 0;
  options.clip = where.update == TESSERA_UPDATE_REDUCED ? 0.0 : 1.0;
  const CUnits units;
  return tessera_engine_create(world, units.units.data(), 2, &options, engine);
}

// Runs `body` with an engine of the toy on each rank.
template <typename Body>
tessera_status with_engines(const Where& where, const Body& body) {
  struct Context {
    const Where& where;
    const Body& body;
  } context{where, body};
  return tessera_run_ranks(
      where.ranks, 20'000,
      [](tessera_world* world, void* user) -> tessera_status {
        const auto& c = *static_cast<Context*>(user);
        std::int32_t rank = -1;
        tessera_engine* engine = nullptr;
        TRY(tessera_world_rank(world, &rank));
        tessera_world* gpus = nullptr;
        if (c.where.device == TESSERA_CUDA && c.where.ranks > 1)
          TRY(tessera_world_create_nccl(world, 20'000, &gpus));
        TRY(make_engine(gpus != nullptr ? gpus : world, rank, c.where, &engine));
        const tessera_status status = c.body(engine, rank);
        EXPECT_EQ(tessera_engine_destroy(engine), TESSERA_OK);
        EXPECT_EQ(tessera_world_destroy(gpus), TESSERA_OK);
        return status;
      },
      &context);
}

::testing::AssertionResult says(const char* part) {
  if (std::strstr(tessera_last_error(), part) != nullptr) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << "the error is: " << tessera_last_error();
}

class CApi : public ::testing::TestWithParam<Where> {};

TEST_P(CApi, HasTheBitsOfTheEngine) {
  const Where& where = GetParam();
  if (const std::string why = missing(where); !why.empty()) GTEST_SKIP() << why;
  Record cpp{.stage = where.stage,
             .update = where.update,
             .ranks = where.ranks,
             .moment_type = where.moment_type,
             .optimizer = where.optimizer},
      c = cpp;
  run_cpp(cpp);
  ASSERT_EQ(with_engines(where, [&](tessera_engine* engine, int rank) { return c_steps(engine, rank, c); }),
            TESSERA_OK)
      << tessera_last_error();
  ASSERT_EQ(cpp.losses.size(), static_cast<std::size_t>(kSteps));
  EXPECT_NE(cpp.losses[0], cpp.losses[1]);
  EXPECT_EQ(cpp.losses, c.losses);
  EXPECT_EQ(cpp.norms, c.norms);
  EXPECT_EQ(cpp.weight, c.weight);
  if (where.update != TESSERA_UPDATE_REDUCED) {  // with it none is left to look at
    EXPECT_EQ(cpp.gradient, c.gradient);
  }
}
INSTANTIATE_TEST_SUITE_P(
    Stages, CApi,
    ::testing::Values(
        Where{0}, Where{3}, Where{1, TESSERA_HOST}, Where{3, TESSERA_DISK, TESSERA_HOST},
        Where{2, TESSERA_HOST, TESSERA_DEVICE, TESSERA_UPDATE_REDUCED},
        Where{2, TESSERA_HOST, TESSERA_DEVICE, TESSERA_UPDATE_NEXT},
        Where{.stage = 2, .moment_type = TESSERA_BF16}, Where{.stage = 1, .optimizer = TESSERA_LION},
        Where{.stage = 3, .states = TESSERA_HOST, .moment_type = TESSERA_BF16, .optimizer = TESSERA_LION}));
INSTANTIATE_TEST_SUITE_P(
    Gpus, CApi,
    ::testing::Values(Where{.device = TESSERA_CUDA}, Where{.stage = 3, .device = TESSERA_CUDA},
                      Where{.stage = 2, .states = TESSERA_HOST, .device = TESSERA_CUDA},
                      Where{.stage = 3, .device = TESSERA_CUDA, .ranks = 1},
                      Where{.device = TESSERA_CUDA, .ranks = 1, .moment_type = TESSERA_BF16},
                      Where{.device = TESSERA_CUDA, .ranks = 1, .optimizer = TESSERA_LION},
                      Where{.stage = 1, .states = TESSERA_HOST, .device = TESSERA_CUDA, .ranks = 1}));

TEST(CApiOptimizer, IsCountedAsTheOptionsAre) {
  const std::vector<std::string_view> names = optimizer_names();
  ASSERT_EQ(names.size(), 4u);
  EXPECT_EQ(names[TESSERA_ADAMW], "adamw");
  EXPECT_EQ(names[TESSERA_ADAM], "adam");
  EXPECT_EQ(names[TESSERA_SGD], "sgd");
  EXPECT_EQ(names[TESSERA_LION], "lion");
  for (const int unknown : {-1, 4}) {
    Where where{};
    where.optimizer = unknown;
    EXPECT_EQ(with_engines(where, [](tessera_engine*, int) { return TESSERA_OK; }), TESSERA_USAGE);
    EXPECT_TRUE(says("is not known; use TESSERA_ADAMW, TESSERA_ADAM, TESSERA_SGD or TESSERA_LION"));
  }
}

TEST(CApiLoss, CanBeAddedWhereItLies) {
  Record given{.stage = 1}, added{.stage = 1, .add_loss = true};
  for (Record* run : {&given, &added})
    ASSERT_EQ(with_engines({.stage = 1},
                           [&](tessera_engine* engine, int rank) { return c_steps(engine, rank, *run); }),
              TESSERA_OK)
        << tessera_last_error();
  EXPECT_EQ(given.losses, added.losses);
  EXPECT_EQ(given.norms, added.norms);
  EXPECT_EQ(given.weight, added.weight);
}

TEST(CApiLoss, OfAnEvaluationGoesOnWithTheLast) {
  const auto body = [](tessera_engine* engine, int) -> tessera_status {
    for (int part = 0; part < 3; ++part) {
      if (part == 0)
        TRY(tessera_begin(engine, TESSERA_EVALUATE, 1));
      else
        TRY(tessera_continue_evaluation(engine, 1));
      for (const int unit : {0, 1}) TRY(tessera_skip_unit(engine, unit, TESSERA_FORWARD));
      const tessera_loss_total total{.sum = 1.5, .counted = part + 1};
      TRY(tessera_add_loss(engine, &total));
      const tessera_step_inputs inputs{.learning_rate = 0.0, .weight = 0.0, .loss = 0.0};
      tessera_step_result result{};
      TRY(tessera_step(engine, &inputs, &result));
      EXPECT_EQ(result.weight, kRanks * (part + 1) * (part + 2) / 2);
      EXPECT_EQ(result.loss, 3.0 / (part + 2));
    }
    return TESSERA_OK;
  };
  EXPECT_EQ(with_engines({.evaluation = 1}, body), TESSERA_OK);
  const auto first = [](tessera_engine* engine, int) { return tessera_continue_evaluation(engine, 1); };
  EXPECT_EQ(with_engines({.ranks = 1, .evaluation = 1}, first), TESSERA_USAGE);
  EXPECT_TRUE(
      says("tessera_begin: tessera_continue_evaluation is what an evaluation may have right behind another"));
}

// Three microbatches on two ranks: the second rank rests in the last round.
TEST(CApiMicrobatches, NeedNotDivideEvenly) {
  const auto body = [](tessera_engine* engine, int rank) -> tessera_status {
    std::int32_t rounds = 0, own = 0;
    TRY(tessera_microbatches(engine, &rounds, &own));
    EXPECT_EQ(rounds, 2);
    EXPECT_EQ(own, rank == 0 ? 2 : 1);
    TRY(tessera_begin(engine, TESSERA_TRAIN, rounds));
    for (int microbatch = 0; microbatch < own; ++microbatch)
      for (const auto& [unit, pass] : {std::pair{0, TESSERA_FORWARD},
                                       {1, TESSERA_FORWARD},
                                       {1, TESSERA_BACKWARD},
                                       {0, TESSERA_BACKWARD}})
        TRY(tessera_skip_unit(engine, unit, pass));
    const tessera_step_inputs inputs{.learning_rate = 0.01, .weight = 1.0 * own, .loss = 2.0 * own};
    tessera_step_result result{};
    TRY(tessera_step(engine, &inputs, &result));
    EXPECT_EQ(result.applied, 1);
    EXPECT_EQ(result.weight, 3.0);
    EXPECT_EQ(result.loss, 2.0);
    return TESSERA_OK;
  };
  for (const int stage : {0, 3})
    EXPECT_EQ(with_engines({.stage = stage, .ranks = 2, .microbatches_per_step = 3}, body), TESSERA_OK)
        << tessera_last_error();
  const auto none = [](tessera_engine*, int) { return TESSERA_OK; };
  EXPECT_EQ(with_engines({.microbatches_per_step = -1}, none), TESSERA_USAGE);
  EXPECT_TRUE(says("tessera_options.microbatches_per_step is -1"));
  EXPECT_EQ(with_engines({.microbatches_per_step = 4, .blocks = 4}, none), TESSERA_OK)
      << tessera_last_error();
  EXPECT_EQ(with_engines({.microbatches_per_step = 6, .blocks = 4}, none), TESSERA_USAGE);
  EXPECT_TRUE(says("microbatches of a step is 6 and options.blocks 4"));
  EXPECT_EQ(with_engines({.blocks = 3}, none), TESSERA_USAGE);
  EXPECT_TRUE(says("options.blocks is 3; it must be a power of two"));
}

TEST(CApiUpdates, WhatWaitsForTheNextStepCanBeFinished) {
  const Where next{.stage = 1, .states = TESSERA_HOST, .update = TESSERA_UPDATE_NEXT, .ranks = 1};
  const auto body = [](tessera_engine* engine, int rank) -> tessera_status {
    EXPECT_EQ(tessera_finish_updates(engine), TESSERA_OK) << "nothing is left";
    Record run{.update = TESSERA_UPDATE_NEXT};
    TRY(c_steps(engine, rank, run));
    TRY(tessera_finish_updates(engine));
    TRY(tessera_begin(engine, TESSERA_TRAIN, kMicrobatches));
    return tessera_finish_updates(engine);
  };
  EXPECT_EQ(with_engines(next, body), TESSERA_USAGE);
  EXPECT_TRUE(says("finish_updates: a step is running"));
}

TEST(CApiGpu, StreamsAreNoneOnTheCpuAndCopiesAreChecked) {
  const auto body = [](tessera_engine* engine, int) -> tessera_status {
    void* stream = &engine;
    TRY(tessera_stream(engine, &stream));
    EXPECT_EQ(stream, nullptr);
    EXPECT_EQ(tessera_stream(engine, nullptr), TESSERA_USAGE);
    EXPECT_EQ(tessera_transfer(engine, nullptr, &stream, 4), TESSERA_USAGE);
    EXPECT_TRUE(says("to is null"));
    EXPECT_EQ(tessera_transfer(engine, &stream, &stream, -4), TESSERA_USAGE);
    EXPECT_EQ(tessera_upload(engine, nullptr, &stream, 4), TESSERA_USAGE);
    TRY(tessera_begin(engine, TESSERA_TRAIN, kMicrobatches));
    return tessera_add_loss(engine, nullptr);
  };
  EXPECT_EQ(with_engines({.ranks = 1}, body), TESSERA_USAGE);
  EXPECT_TRUE(says("add_loss: total is null"));
}

TEST(CApiGpu, SaysWhatIsMissing) {
  EXPECT_EQ(tessera_world_create_nccl(nullptr, 1000, nullptr), TESSERA_USAGE);
  tessera_world* world = nullptr;
  EXPECT_EQ(tessera_world_create_nccl(nullptr, 1000, &world), TESSERA_USAGE);
  EXPECT_TRUE(says("host is null"));
  unsetenv("WORLD_SIZE");
  EXPECT_EQ(tessera_world_create_from_variables(1000, &world), TESSERA_USAGE);
  EXPECT_TRUE(says("WORLD_SIZE is not set"));
  EXPECT_EQ(with_engines({.device = 7, .ranks = 1}, [](tessera_engine*, int) { return TESSERA_OK; }),
            TESSERA_USAGE);
  EXPECT_TRUE(says("device 7 is not known; use 0 to 1"));
}

TEST(CApiErrors, AFactorThatIsGivenIsMarked) {
  EXPECT_EQ(tessera_run_ranks(
                1, 20'000,
                [](tessera_world* world, void*) -> tessera_status {
                  tessera_options options;
                  TRY(tessera_options_init(&options, sizeof options));
                  const tessera_group group = {"slow", 0, 0, 0.0, 0.1};
                  options.groups = &group;
                  options.group_count = 1;
                  tessera_engine* engine = nullptr;
                  const CUnits units;
                  return tessera_engine_create(world, units.units.data(), 2, &options, &engine);
                },
                nullptr),
            TESSERA_USAGE);
  EXPECT_TRUE(says("learning_rate_factor of group 'slow' is 0.1 and own_learning_rate_factor 0"));
}

TEST(CApiErrors, SayWhatWasWrong) {
  const auto body = [](tessera_engine* engine, int) -> tessera_status {
    tessera_lease* lease = nullptr;
    tessera_view view{};
    std::int32_t id = -1;
    float value = 0;
    EXPECT_EQ(tessera_find_parameter(engine, "a.wieght", &id), TESSERA_USAGE);
    EXPECT_TRUE(says("a.weight"));
    EXPECT_EQ(tessera_begin(nullptr, TESSERA_TRAIN, 1), TESSERA_USAGE);
    EXPECT_TRUE(says("engine is null"));
    EXPECT_EQ(tessera_begin(engine, 7, 1), TESSERA_USAGE);
    EXPECT_TRUE(says("kind 7 is not known; use 0 to 1"));
    EXPECT_EQ(tessera_read(engine, 0, TESSERA_MASTER, 0, &value, -1), TESSERA_USAGE);
    EXPECT_TRUE(says("count of -1"));
    EXPECT_EQ(tessera_read(engine, 0, TESSERA_MASTER, 0, nullptr, 1), TESSERA_USAGE);
    EXPECT_TRUE(says("values is null"));
    TRY(tessera_begin(engine, TESSERA_TRAIN, kMicrobatches));
    TRY(tessera_use_unit(engine, 0, TESSERA_FORWARD, &lease));
    EXPECT_EQ(tessera_lease_gradient(lease, 0, &view), TESSERA_USAGE);
    EXPECT_TRUE(says("gradients exist in backward only"));
    TRY(tessera_lease_end(lease));
    EXPECT_EQ(tessera_lease_end(lease), TESSERA_USAGE);
    EXPECT_TRUE(says("the lease has ended"));
    return tessera_use_unit(engine, 0, TESSERA_FORWARD, &lease);  // out of order: the engine fails
  };
  EXPECT_EQ(with_engines({.ranks = 1}, body), TESSERA_USAGE);
  EXPECT_TRUE(says("the program expects"));
}

TEST(CApiUnits, ThoseReadInForwardOnlyAreNotGatheredForBackward) {
  const auto rank_main = [](tessera_world* world, void*) -> tessera_status {
    CUnits units;
    units.units[0].read_in_forward_only = 1;
    tessera_options options;
    tessera_engine* engine = nullptr;
    tessera_lease* lease = nullptr;
    tessera_view view{};
    TRY(tessera_options_init(&options, sizeof options));
    options.groups = kGroups.data();
    options.group_count = 2;
    TRY(tessera_engine_create(world, units.units.data(), 1, &options, &engine));
    TRY(tessera_initialize(engine, c_fill, nullptr));
    TRY(tessera_begin(engine, TESSERA_TRAIN, 1));
    TRY(tessera_use_unit(engine, 0, TESSERA_FORWARD, &lease));
    TRY(tessera_lease_parameter(lease, 0, &view));
    TRY(tessera_lease_end(lease));
    TRY(tessera_use_unit(engine, 0, TESSERA_BACKWARD, &lease));
    EXPECT_EQ(tessera_lease_parameter(lease, 0, &view), TESSERA_USAGE);
    EXPECT_TRUE(says("read_in_forward_only"));
    TRY(tessera_lease_end(lease));
    TRY(tessera_abandon(engine, nullptr));
    return tessera_engine_destroy(engine);
  };
  EXPECT_EQ(tessera_run_ranks(1, 20'000, rank_main, nullptr), TESSERA_OK) << tessera_last_error();
}

TEST(CApiErrors, RefuseWhatDoesNotFit) {
  tessera_options options;
  EXPECT_EQ(tessera_options_init(&options, sizeof options - 8), TESSERA_USAGE);
  EXPECT_TRUE(says("use the header of this library"));
  EXPECT_EQ(tessera_options_init(nullptr, sizeof options), TESSERA_USAGE);
  EXPECT_EQ(tessera_run_ranks(1, 1000, nullptr, nullptr), TESSERA_USAGE);
  const auto well = [](tessera_world*, void*) -> tessera_status { return TESSERA_OK; };
  EXPECT_EQ(tessera_run_ranks(0, 1000, well, nullptr), TESSERA_USAGE);
  EXPECT_EQ(tessera_run_ranks(1, 0, well, nullptr), TESSERA_USAGE);
  EXPECT_TRUE(says("deadline_ms is 0"));
  EXPECT_EQ(with_engines({.stage = 4, .ranks = 1}, [](tessera_engine*, int) { return TESSERA_OK; }),
            TESSERA_USAGE);
  EXPECT_EQ(tessera_engine_destroy(nullptr), TESSERA_OK);
}

// What rank 1 returns is what the whole run returns, and rank 0 is told while it waits for it.
TEST(CApiErrors, ARankThatReturnsAnErrorEndsTheOthers) {
  tessera_status rank0 = TESSERA_OK;
  const tessera_status all =
      with_engines({.stage = 3}, [&](tessera_engine* engine, int rank) -> tessera_status {
        if (rank == 1) return TESSERA_USER + 5;
        Record run;
        rank0 = c_steps(engine, rank, run);
        EXPECT_TRUE(says("rank 1"));
        return rank0;
      });
  EXPECT_EQ(rank0, TESSERA_COMMUNICATION);
  EXPECT_EQ(all, TESSERA_USER + 5);
  EXPECT_TRUE(says("rank 1 returned 105"));
}

TEST(CApiErrors, AnEngineDestroyedWithAnOpenLeaseFailsTheOthers) {
  tessera_status rank0 = TESSERA_OK;
  const tessera_status all =
      with_engines({.stage = 3}, [&](tessera_engine* engine, int rank) -> tessera_status {
        Record run;
        if (rank == 0) return rank0 = c_steps(engine, rank, run);
        tessera_lease* lease = nullptr;
        TRY(tessera_initialize(engine, c_fill, nullptr));
        TRY(tessera_begin(engine, TESSERA_TRAIN, kMicrobatches));
        return tessera_use_unit(engine, 0, TESSERA_FORWARD, &lease);  // and away
      });
  EXPECT_EQ(rank0, TESSERA_COMMUNICATION);
  EXPECT_EQ(all, TESSERA_COMMUNICATION);
  EXPECT_TRUE(says("destroyed before tessera_lease_end()"));
}

// Callbacks in C++ may throw; a caller in C must not see it.
TEST(CApiErrors, NothingIsThrown) {
  const auto throwing = [](tessera_world*, void*) -> tessera_status { throw std::runtime_error("a bang"); };
  EXPECT_EQ(tessera_run_ranks(2, 5000, throwing, nullptr), TESSERA_OTHER);
  EXPECT_TRUE(says("a bang"));
  const auto odd = [](tessera_world*, void*) -> tessera_status { throw 3; };
  EXPECT_EQ(tessera_run_ranks(1, 5000, odd, nullptr), TESSERA_OTHER);
  const auto body = [](tessera_engine* engine, int) {
    return tessera_initialize(
        engine, [](auto, auto, auto, auto, auto) -> tessera_status { return TESSERA_USER + 1; }, nullptr);
  };
  EXPECT_EQ(with_engines({.ranks = 1}, body), TESSERA_USER + 1);
  EXPECT_TRUE(says("fill returned 101"));
}

TEST(CApiPlan, TellsBytes) {
  const auto body = [](tessera_engine* engine, int) -> tessera_status {
    std::int64_t arena = 0;
    std::array<std::int64_t, TESSERA_CATEGORIES> at_peak{};
    TRY(tessera_plan_bytes(engine, TESSERA_DEVICE, &arena, at_peak.data()));
    std::int64_t sum = 0;
    for (std::int64_t bytes : at_peak) sum += bytes;
    EXPECT_GT(at_peak[TESSERA_OPTIMIZER_STATE], 0);
    EXPECT_GT(sum, 0);
    EXPECT_GE(arena, sum);
    EXPECT_EQ(tessera_plan_bytes(engine, 3, &arena, nullptr), TESSERA_USAGE);
    EXPECT_TRUE(says("space 3 is not known"));
    TRY(tessera_plan_bytes(engine, TESSERA_HOST, &arena, nullptr));
    EXPECT_EQ(arena, 0);
    const char* notes = nullptr;
    TRY(tessera_notes(engine, &notes));
    EXPECT_STREQ(notes, "") << "ranks are threads";
    EXPECT_EQ(tessera_notes(engine, nullptr), TESSERA_USAGE);
    return TESSERA_OK;
  };
  EXPECT_EQ(with_engines({.stage = 3}, body), TESSERA_OK) << tessera_last_error();
}

}  // namespace
}  // namespace tessera::testing
