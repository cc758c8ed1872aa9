// Mistakes that users of the C++ API make, and what each is told: on two ranks, stage 2. None crashes, hangs
// or goes on with wrong numbers. c_wrong_uses_test.cpp has those of C. docs/embedding.md lists them; each
// row's words are there.
#include <gtest/gtest.h>

#include <chrono>
#include <fstream>
#include <iterator>
#include <limits>
#include <thread>

#include "tessera/arrays.h"
#include "tessera/launch.h"
#include "tests/engine/failing.h"

namespace tessera::testing {
namespace {

using std::chrono::milliseconds;

// What a row works on: a rank's engine of the toy's units, and its world.
struct Run {
  Communicator world;
  Engine engine;
  int rank;

  static EngineOptions options() {
    EngineOptions made = toy_options(2, 2);
    made.overwrites_gradients = false;
    made.waits.deadline = {};  // the world's
    return made;
  }
  explicit Run(const Communicator& in) : Run(in, options()) {}
  Run(const Communicator& in, const EngineOptions& made)
      : world(in), engine(in, toy_units(DType::bf16), made), rank(in.rank()) {
    engine.initialize(toy_fill());
  }
  void begin() { engine.begin(StepKind::train); }
  void uses() { toy_uses(engine, {}); }
  StepResult step(double rate = 0.1) { return engine.step({.learning_rate = rate}); }
};

EngineOptions changed(const std::function<void(EngineOptions&)>& change) {
  EngineOptions options = Run::options();
  change(options);
  return options;
}

struct WrongUse {
  const char* name;
  const char* words;  // of the message
  std::function<void(const Communicator& world)> use;
};

void PrintTo(const WrongUse& use, std::ostream* out) { *out << use.name; }

// A row whose mistake is made by a rank that has an engine.
WrongUse of_engine(const char* name, const char* words, const std::function<void(Run&)>& use) {
  return {name, words, [use](const Communicator& world) {
            Run run(world);
            use(run);
          }};
}
// A row whose mistake is an option.
WrongUse of_options(const char* name, const char* words, const std::function<void(EngineOptions&)>& change) {
  return {name, words, [change](const Communicator& world) { const Run run(world, changed(change)); }};
}

const std::vector<WrongUse>& wrong_uses() {
  static const std::vector<WrongUse> uses = {
      of_options("RanksThatDoNotFit", "mesh shard 3 has 3 ranks, but the world has 2",
                 [](EngineOptions& of) { of.mesh.shard = 3; }),
      of_options("NoProgram", "programs is empty", [](EngineOptions& of) { of.programs.clear(); }),
      of_options("ClipBeforeTheNormIsKnown", "clip.max_norm is 1 and strategy.update is reduced",
                 [](EngineOptions& of) {
                   of.clip.max_norm = 1;
                   of.strategy.update = UpdateWhen::reduced;
                 }),
      of_options("GroupsThatAreMissing", "the optimizer has groups 0 to 0",
                 [](EngineOptions& of) { of.optimizer.groups.resize(1); }),
      of_options("AddressSpaceBelowZero", "address_space_before is -1",
                 [](EngineOptions& of) { of.address_space_before = -1; }),
      {"OptionsThatDifferBetweenRanks", "was given other units or options than rank 0",
       [](const Communicator& world) {
         const Run run(world, changed([&](EngineOptions& of) { of.strategy.prefetch = world.rank(); }));
       }},
      {"TwoParametersOfOneName", "'w'",
       [](const Communicator& world) {
         const Engine engine(
             world, {{.name = "u", .parameters = {{.name = "w", .shape = {2}}, {.name = "w", .shape = {2}}}}},
             changed([](EngineOptions&) {}));
       }},
      {"ArraysThatOverwrite", "overwrites_gradients is true, but a table of gradients cannot say",
       [](const Communicator& world) {
         ArrayEngine(world, {{.numel = 8}},
                     changed([](EngineOptions& of) { of.overwrites_gradients = true; }));
       }},
      {"TablesOfAnotherLength", "bind: parameters has 2 entries; there are 1 arrays",
       [](const Communicator& world) {
         ArrayEngine model(world, {{.numel = 8}}, Run::options());
         std::vector<float*> table(2);
         model.bind(table, {});
       }},
      {"FloatsOfABf16Array", "bind: array 'array0' is bf16, and the tables are of float*",
       [](const Communicator& world) {
         ArrayEngine model(world, {{.numel = 8, .dtype = DType::bf16}}, Run::options());
         std::vector<float*> table(1);
         model.bind(table, {});
       }},
      {"EnteringWithoutTables", "enter: no tables are bound",
       [](const Communicator& world) {
         ArrayEngine model(world, {{.numel = 8}}, Run::options());
         model.engine().begin(StepKind::train);
         model.enter(0, Pass::forward);
       }},
      {"ValuesOfAnotherNumber", "write: 7 values; the arrays have 8 together",
       [](const Communicator& world) {
         ArrayEngine model(world, {{.numel = 8}}, Run::options());
         model.write(std::vector<float>(7));
       }},
      of_engine("FloatsOfABf16Parameter", "'embed.weight' is bf16 and was asked for as float",
                [](Run& of) {
                  of.begin();
                  UnitLease lease = of.engine.use(kEmbed, Pass::forward);
                  (void)lease.parameter(kEmbedWeight).as<float>();
                }),
      of_engine("AParameterOfAnotherUnit", "is not of unit 'embed'",
                [](Run& of) {
                  of.begin();
                  UnitLease lease = of.engine.use(kEmbed, Pass::forward);
                  (void)lease.parameter(kHeadWeight);
                }),
      of_engine("AGradientInForward", "gradients exist in backward only",
                [](Run& of) {
                  of.begin();
                  UnitLease lease = of.engine.use(kEmbed, Pass::forward);
                  (void)lease.gradient(kEmbedWeight);
                }),
      of_engine("ALeaseThatIsDropped", "was destroyed before end()",
                [](Run& of) {
                  of.begin();
                  { const UnitLease lease = of.engine.use(kEmbed, Pass::forward); }
                  (void)of.step();
                }),
      of_engine("ALeaseThatHasEnded", "the lease has ended; its pointers and calls are no longer valid",
                [](Run& of) {
                  of.begin();
                  UnitLease lease = of.engine.use(kEmbed, Pass::forward);
                  lease.end();
                  (void)lease.parameter(kEmbedWeight);
                }),
      of_engine("AUseBeforeBegin", "use: forward of embed was called while no step is running",
                [](Run& of) { of.engine.use(kEmbed, Pass::forward).end(); }),
      of_engine("AUnitLeftOut", "use: forward of block.1 was called, but the program expects",
                [](Run& of) {
                  of.begin();
                  of.engine.use(kEmbed, Pass::forward).end();
                  of.engine.use(kBlock1, Pass::forward).end();
                }),
      of_engine("AStepWithoutItsUses", "step: the program expects",
                [](Run& of) {
                  of.begin();
                  (void)of.step();
                }),
      of_engine("TwoBegins", "begin: a step is running",
                [](Run& of) {
                  of.begin();
                  of.begin();
                }),
      of_engine("MicrobatchesThatNoProgramHas", "no program to train with 4 microbatches",
                [](Run& of) { of.engine.begin(StepKind::train, 4); }),
      of_engine("ATrainingStepEndedAsAnEvaluation", "end_evaluation: no evaluation is running",
                [](Run& of) {
                  of.begin();
                  of.uses();
                  of.engine.end_evaluation();
                }),
      of_engine("ARateThatIsNotANumber", "learning_rate is nan",
                [](Run& of) {
                  of.begin();
                  of.uses();
                  (void)of.step(std::numeric_limits<double>::quiet_NaN());
                }),
      of_engine("RatesThatDiffer", "rank 1 has learning rate",
                [](Run& of) {
                  of.begin();
                  of.uses();
                  (void)of.step(0.1 + of.rank);
                }),
      of_engine("ValuesThatDiffer",
                "other values of master of 'embed.weight': element 6 is 2 on rank 0 and 3 on rank 1",
                [](Run& of) {
                  const std::vector<float> values = {1, 2.0f + static_cast<float>(of.rank)};
                  of.engine.write(kEmbedWeight, StateKind::master, 5, values);
                }),
      of_engine("WritesThatDiffer", "all ranks make the same calls",
                [](Run& of) {
                  const std::vector<float> values(4);
                  of.engine.write(kEmbedWeight, StateKind::master, of.rank, values);
                }),
      of_engine("AFillOfItsOwn", "was given other initial values than rank 0",
                [](Run& of) {
                  of.engine.initialize([&](ParameterId, std::int64_t, std::span<float> values) {
                    std::ranges::fill(values, static_cast<float>(of.rank));
                  });
                }),
      of_engine(
          "AWriteBeyondTheEnd", "of 'embed.weight', which has 520",
          [](Run& of) { of.engine.write(kEmbedWeight, StateKind::master, 519, std::vector<float>(2)); }),
      of_engine("ARankThatStalls", "no answer from rank 1 within 2.0 s",
                [](Run& of) {
                  of.begin();
                  if (of.rank == 1) std::this_thread::sleep_for(milliseconds(2200));
                  of.uses();
                  (void)of.step();
                }),
      {"NoFunctionToLaunch", "launch: rank_main is empty", [](const Communicator&) { launch({}, {}); }},
      {"NoThreadsToLaunch", "launch: threads is 0",
       [](const Communicator&) { launch({.threads = 0}, [](const Communicator&) {}); }},
  };
  return uses;
}

class WrongUses : public ::testing::TestWithParam<WrongUse> {};

TEST_P(WrongUses, AreTold) {
  using Clock = std::chrono::steady_clock;
  const auto begin = Clock::now();
  try {
    run_local(2, {.deadline = milliseconds(2000), .waiting = Waiting::block}, GetParam().use);
    ADD_FAILURE() << "nothing was said";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find(GetParam().words), std::string::npos) << error.what();
  }
  EXPECT_LT(Clock::now() - begin, milliseconds(4000)) << "it took two deadlines";
}

INSTANTIATE_TEST_SUITE_P(All, WrongUses, ::testing::ValuesIn(wrong_uses()),
                         [](const auto& of) { return std::string(of.param.name); });

TEST(WrongUses, AreListedForUsers) {
  std::ifstream in(TESSERA_SOURCES "/docs/embedding.md");
  const std::string page{std::istreambuf_iterator<char>(in), {}};
  for (const WrongUse& use : wrong_uses())
    EXPECT_NE(page.find(use.words), std::string::npos) << use.name << ": '" << use.words << "'";
}

}  // namespace
}  // namespace tessera::testing
