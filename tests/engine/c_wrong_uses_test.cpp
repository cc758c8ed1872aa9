// Mistakes that users of the C API make, and what each is told: on two ranks, stage 2, one after the other.
// None crashes, hangs or goes on with wrong numbers. docs/embed-in-c.md lists them; each row's words are
// there.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cmath>
#include <fstream>
#include <functional>
#include <iterator>
#include <thread>
#include <vector>

#include "tessera/c_arrays.h"
#include "tests/engine/c_try.h"

namespace tessera::testing {
namespace {

constexpr std::int64_t kDeadlineMs = 2000;
constexpr int kArrays = 4, kHead = 3;

// A model of four arrays over four units, its engine and its tables.
struct Model {
  explicit Model(tessera_world* in) : world(in) {
    tessera_options_init(&options, sizeof options);
    options.stage = 2;
    arrays[0] = {"table", 40, 0, 0, kHead, TESSERA_FP32, 0, 0};
    arrays[1] = {"weight", 2 * 30, 2, 1, 0, TESSERA_FP32, 0, 0};
    arrays[2] = {"bias", 2 * 6, 2, 1, 0, TESSERA_FP32, 0, 0};
    arrays[3] = {"norm", 6, 0, kHead, 0, TESSERA_FP32, 0, 0};
    tessera_world_rank(world, &rank);
  }
  ~Model() { tessera_engine_destroy(engine); }
  Model(const Model&) = delete;
  Model& operator=(const Model&) = delete;

  tessera_status create() {
    return tessera_engine_create_arrays(world, arrays.data(), kArrays, &options, &engine);
  }
  tessera_status bind() { return tessera_bind(engine, parameters.data(), gradients.data()); }
  tessera_status ready() {
    TRY(create());
    TRY(bind());
    return tessera_write_arrays(engine, std::vector<float>(118, 0.5f).data());
  }
  tessera_status begin() {
    TRY(ready());
    return tessera_begin(engine, TESSERA_TRAIN, 1);
  }
  tessera_status enter(int unit, int pass) { return tessera_enter(engine, unit, pass); }
  tessera_status uses() {
    for (int unit = 0; unit <= kHead; ++unit) TRY(enter(unit, TESSERA_FORWARD));
    for (int unit = kHead; unit >= 0; --unit) {
      TRY(enter(unit, TESSERA_BACKWARD));
      if (unit == 1) gradients[1][0] += gradient;
    }
    return TESSERA_OK;
  }
  tessera_status step(double rate = 0.1, double loss = 1, tessera_step_result* result = nullptr) {
    return tessera_step_mean(engine, rate, loss, result);
  }

  tessera_world* world;
  tessera_engine* engine = nullptr;
  tessera_options options{};
  std::array<tessera_array, kArrays> arrays{};
  std::array<float*, kArrays> parameters{}, gradients{};
  std::int32_t rank = 0;
  float gradient = 1;
};

struct WrongUse {
  const char* name;
  tessera_status status;
  const char* words;  // of the message
  std::function<tessera_status(Model& of)> use;
};

void PrintTo(const WrongUse& use, std::ostream* out) { *out << use.name; }

tessera_status lease_of_bf16(Model& of, tessera_lease** lease) {
  const std::int64_t four = 4;
  const tessera_parameter parameters[] = {{"half", &four, 1, TESSERA_BF16, 0, 0, nullptr, nullptr, 0},
                                          {"frozen", &four, 1, TESSERA_FP32, 1, 0, nullptr, nullptr, 0}};
  const tessera_unit units[] = {{"first", parameters, 1, 0, 0, 0, 0, 0, 0},
                                {"second", parameters + 1, 1, 0, 0, 0, 0, 0, 0}};
  TRY(tessera_engine_create(of.world, units, 2, &of.options, &of.engine));
  TRY(tessera_begin(of.engine, TESSERA_TRAIN, 1));
  return tessera_use_unit(of.engine, 0, TESSERA_FORWARD, lease);
}

// The rank that a run leaves behind goes on when it is released.
std::atomic<bool> released{true}, stalled_is_through{true};

const WrongUse kWrongUses[] = {
    {"OptionsNotInitialized", TESSERA_USAGE, "bytes here and 0 in the caller",
     [](Model& of) { return of.options = {}, of.create(); }},
    {"NullWorld", TESSERA_USAGE, "world is null", [](Model& of) { return of.world = nullptr, of.create(); }},
    {"StageThatIsNone", TESSERA_USAGE, "stage 4 is not a ZeRO stage; it must be 0, 1, 2 or 3",
     [](Model& of) { return of.options.stage = 4, of.create(); }},
    {"RanksThatDoNotDivide", TESSERA_USAGE, "mesh shard 3 has 3 ranks, but the world has 2",
     [](Model& of) { return of.options.shard = 3, of.create(); }},
    {"MomentumOfAdamW", TESSERA_USAGE, "momentum is 0.9",
     [](Model& of) { return of.options.momentum = 0.9, of.create(); }},
    {"UpdatesBeforeAClip", TESSERA_USAGE, "options.clip is 1 and options.update is reduced",
     [](Model& of) { return of.options.clip = 1, of.options.update = TESSERA_UPDATE_REDUCED, of.create(); }},
    {"TablesThatOverwrite", TESSERA_USAGE, "overwrite_gradients is 1, but a table of gradients cannot say",
     [](Model& of) { return of.options.overwrite_gradients = 1, of.create(); }},
    {"PartsThatDoNotDivide", TESSERA_USAGE, "array 'weight': numel is 61 and units 2",
     [](Model& of) { return of.arrays[1].numel = 61, of.create(); }},
    {"AUnitWithoutArrays", TESSERA_USAGE, "no array has a part in unit 1",
     [](Model& of) {
       return of.arrays[1].first_unit = of.arrays[2].first_unit = 2,
              of.arrays[1].units = of.arrays[2].units = 1, of.create();
     }},
    {"ATieToAnEarlierUnit", TESSERA_USAGE, "the unit that also reads it must be a later one",
     [](Model& of) { return of.arrays[3].also_in = 1, of.create(); }},
    {"TwoArraysOfOneName", TESSERA_USAGE, "'norm'",
     [](Model& of) { return of.arrays[0].name = "norm", of.create(); }},
    {"AGroupThatIsNone", TESSERA_USAGE, "is in group 2",
     [](Model& of) { return of.arrays[3].group = 2, of.create(); }},
    {"OptionsThatDifferBetweenRanks", TESSERA_USAGE, "was given other units or options than rank 0",
     [](Model& of) { return of.options.weight_decay = of.rank * 0.1, of.create(); }},
    {"FloatsOfABf16Array", TESSERA_USAGE, "array 'bias' is bf16, and the tables are of float*",
     [](Model& of) {
       of.arrays[2].dtype = TESSERA_BF16;
       TRY(of.create());
       return of.bind();
     }},
    {"FloatsOfABf16Parameter", TESSERA_USAGE, "'half' is bf16 and was asked for as float",
     [](Model& of) {
       tessera_lease* lease = nullptr;
       float* values = nullptr;
       TRY(lease_of_bf16(of, &lease));
       return tessera_lease_fp32(lease, 0, &values);
     }},
    {"AParameterOfAnotherUnit", TESSERA_USAGE, "parameter 1 is not of unit 'first'",
     [](Model& of) {
       tessera_lease* lease = nullptr;
       tessera_view view;
       TRY(lease_of_bf16(of, &lease));
       return tessera_lease_parameter(lease, 1, &view);
     }},
    {"AGradientInForward", TESSERA_USAGE, "gradients exist in backward only",
     [](Model& of) {
       tessera_lease* lease = nullptr;
       tessera_view view;
       TRY(lease_of_bf16(of, &lease));
       return tessera_lease_gradient(lease, 0, &view);
     }},
    {"ALeaseThatHasEnded", TESSERA_USAGE, "the lease has ended",
     [](Model& of) {
       tessera_lease* lease = nullptr;
       tessera_view view;
       TRY(lease_of_bf16(of, &lease));
       TRY(tessera_lease_end(lease));
       return tessera_lease_parameter(lease, 0, &view);
     }},
    {"ArraysOfAnEngineOfUnits", TESSERA_USAGE, "make it by tessera_engine_create_arrays",
     [](Model& of) {
       tessera_lease* lease = nullptr;
       TRY(lease_of_bf16(of, &lease));
       return of.step();
     }},
    {"EnteringWithoutTables", TESSERA_USAGE, "tessera_enter: no tables are bound",
     [](Model& of) {
       TRY(of.create());
       TRY(tessera_begin(of.engine, TESSERA_TRAIN, 1));
       return of.enter(0, TESSERA_FORWARD);
     }},
    {"EnteringBeforeBegin", TESSERA_USAGE, "forward of unit0 was called while no step is running",
     [](Model& of) {
       TRY(of.ready());
       return of.enter(0, TESSERA_FORWARD);
     }},
    {"AUnitLeftOut", TESSERA_USAGE, "forward of unit2 was called, but the program expects",
     [](Model& of) {
       TRY(of.begin());
       TRY(of.enter(0, TESSERA_FORWARD));
       return of.enter(2, TESSERA_FORWARD);
     }},
    {"AStepWithoutBackward", TESSERA_USAGE, "tessera_step: the program expects",
     [](Model& of) {
       TRY(of.begin());
       for (int unit = 0; unit <= kHead; ++unit) TRY(of.enter(unit, TESSERA_FORWARD));
       return of.step();
     }},
    {"TwoBegins", TESSERA_USAGE, "tessera_begin: a step is running",
     [](Model& of) {
       TRY(of.begin());
       return tessera_begin(of.engine, TESSERA_TRAIN, 1);
     }},
    {"MicrobatchesThatNoProgramHas", TESSERA_USAGE, "no program to train with 4 microbatches",
     [](Model& of) {
       TRY(of.ready());
       return tessera_begin(of.engine, TESSERA_TRAIN, 4);
     }},
    {"AnEvaluationThatWasNotAskedFor", TESSERA_USAGE, "no program to evaluate with 1 microbatches",
     [](Model& of) {
       TRY(of.ready());
       return tessera_begin(of.engine, TESSERA_EVALUATE, 1);
     }},
    {"ATrainingStepEndedAsAnEvaluation", TESSERA_USAGE, "no evaluation is running",
     [](Model& of) {
       TRY(of.begin());
       TRY(of.uses());
       return tessera_end_evaluation(of.engine);
     }},
    {"ARateBelowZero", TESSERA_USAGE, "learning_rate is -0.1",
     [](Model& of) {
       TRY(of.begin());
       TRY(of.uses());
       return of.step(-0.1);
     }},
    {"RatesThatDiffer", TESSERA_COMMUNICATION, "rank 1 has learning rate",
     [](Model& of) {
       TRY(of.begin());
       TRY(of.uses());
       return of.step(0.1 + of.rank);
     }},
    {"ValuesThatDiffer", TESSERA_COMMUNICATION,
     "other values of master of 'weight.1': element 7 is 0 on rank 0 and 3 on rank 1",
     [](Model& of) {
       std::vector<float> all(118);
       all[40 + 30 + 7] = 3.0f * static_cast<float>(of.rank);
       TRY(of.create());
       return tessera_write_arrays(of.engine, all.data());
     }},
    {"AGradientThatIsNotFinite", TESSERA_SKIPPED, "the gradient of 'weight.0' is not finite",
     [](Model& of) {
       of.gradient = of.rank == 1 ? INFINITY : 1.0f;
       TRY(of.begin());
       TRY(of.uses());
       return of.step();
     }},
    {"ARankThatGivesUp", TESSERA_USER, "rank 1 returned 100",
     [](Model& of) {
       TRY(of.begin());
       if (of.rank == 1) return static_cast<tessera_status>(TESSERA_USER);
       TRY(of.uses());
       return of.step();
     }},
    {"ARankThatEndsInTheMiddle", TESSERA_COMMUNICATION, "the engine was destroyed in the middle of a step",
     [](Model& of) {
       TRY(of.begin());
       if (of.rank == 1) return static_cast<tessera_status>(TESSERA_OK);
       TRY(of.uses());
       return of.step();
     }},
    {"ARankThatStalls", TESSERA_COMMUNICATION, "no answer from rank 1 within 2.0 s",
     [](Model& of) {
       TRY(of.begin());
       if (of.rank == 1) {
         while (!released.load()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
         stalled_is_through = true;
         return static_cast<tessera_status>(TESSERA_OK);
       }
       TRY(of.uses());
       return of.step();
     }},
    {"TheWorldOfARankMainDestroyed", TESSERA_USAGE, "the world that rank_main is given ends with it",
     [](Model& of) { return tessera_world_destroy(of.world); }},
};

class CWrongUses : public ::testing::TestWithParam<WrongUse> {};

TEST_P(CWrongUses, AreToldInTime) {
  using Clock = std::chrono::steady_clock;
  static const WrongUse* use = nullptr;  // static: a rank that stalls outlives the run
  use = &GetParam();
  released = stalled_is_through = use->words != std::string("no answer from rank 1 within 2.0 s");
  const auto begin = Clock::now();
  const tessera_status status = tessera_run_ranks(
      2, kDeadlineMs,
      [](tessera_world* world, void*) {
        Model model(world);
        return use->use(model);
      },
      nullptr);
  EXPECT_EQ(status, use->status) << tessera_last_error();
  EXPECT_NE(std::string(tessera_last_error()).find(use->words), std::string::npos) << tessera_last_error();
  EXPECT_LT(Clock::now() - begin, std::chrono::milliseconds(2 * kDeadlineMs)) << "it took two deadlines";
  released = true;
  while (!stalled_is_through.load()) std::this_thread::sleep_for(std::chrono::milliseconds(10));
}

INSTANTIATE_TEST_SUITE_P(All, CWrongUses, ::testing::ValuesIn(kWrongUses),
                         [](const auto& of) { return std::string(of.param.name); });

// A doubled backslash or another name there would tell users something else than they see.
TEST(CWrongUses, AreListedForUsers) {
  std::ifstream in(TESSERA_SOURCES "/docs/embed-in-c.md");
  std::string page{std::istreambuf_iterator<char>(in), {}};
  for (const WrongUse& use : kWrongUses)
    EXPECT_NE(page.find(use.words), std::string::npos) << use.name << ": '" << use.words << "'";
}

TEST(CSkipped, IsNoFailureOfARank) {
  // Each rank sees it, and may go on.
  const tessera_status status = tessera_run_ranks(
      2, 20'000,
      [](tessera_world* world, void*) {
        Model model(world);
        model.gradient = NAN;
        TRY(model.begin());
        TRY(model.uses());
        EXPECT_EQ(model.step(), TESSERA_SKIPPED);
        model.gradient = 1;
        tessera_step_result result{};
        TRY(tessera_begin(model.engine, TESSERA_TRAIN, 1));
        TRY(model.uses());
        TRY(model.step(0.1, 1, &result));
        EXPECT_EQ(result.applied, 1);
        EXPECT_EQ(result.step, 1);
        return static_cast<tessera_status>(TESSERA_OK);
      },
      nullptr);
  EXPECT_EQ(status, TESSERA_OK) << tessera_last_error();
}

TEST(CSkipped, IsAResultWhereOneIsAskedFor) {
  const tessera_status status = tessera_run_ranks(
      1, 20'000,
      [](tessera_world* world, void*) {
        Model model(world);
        model.gradient = NAN;
        tessera_step_result result{};
        TRY(model.begin());
        TRY(model.uses());
        TRY(model.step(0.1, 1, &result));
        EXPECT_EQ(result.applied, 0);
        EXPECT_EQ(result.reason, TESSERA_NOT_FINITE);
        EXPECT_STREQ(result.first_nonfinite, "weight.0");
        return static_cast<tessera_status>(TESSERA_OK);
      },
      nullptr);
  EXPECT_EQ(status, TESSERA_OK) << tessera_last_error();
}

tessera_status must_train(tessera_world* world, void*) {
  Model model(world);
  model.gradient = NAN;
  TESSERA_MUST(model.begin());
  TESSERA_MUST(model.uses());
  TESSERA_MUST(model.step());
  return TESSERA_OK;
}

TEST(CMustDeathTest, EndsTheProgramWithPlaceCallAndMessage) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(tessera_run_ranks(2, 20'000, must_train, nullptr), ::testing::ExitedWithCode(1),
              "c_wrong_uses_test.cpp:[0-9]+: model.step\\(\\): the step was skipped and changed nothing: the "
              "gradient of 'weight.0'");
}

}  // namespace
}  // namespace tessera::testing
