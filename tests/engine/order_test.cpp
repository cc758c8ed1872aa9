// Calls out of order: an error at once on the rank that makes them, naming the call and what the program
// expects, and soon on the others, naming that rank. Never a hang.
#include <gtest/gtest.h>

#include <algorithm>

#include "tessera/program.h"
#include "tests/engine/failing.h"

namespace tessera::testing {
namespace {

using ::testing::TestWithParam;

struct Wrong {
  const char* name;
  std::function<void(Engine&)> call;
  std::vector<std::string> words;  // of the message
  std::vector<Use> order = {};
  int stage = 3;
};

void begin(Engine& engine) { engine.begin(StepKind::train, 1); }

// Forward of block.0 holds those of activation and block.1.
std::vector<Use> nested_order() {
  return {
      {kEmbed, Pass::forward},       {kBlock0, Pass::forward, UseEdge::open},   {kActivation, Pass::forward},
      {kBlock1, Pass::forward},      {kBlock0, Pass::forward, UseEdge::close},  {kHead, Pass::forward},
      {kHead, Pass::backward},       {kBlock0, Pass::backward, UseEdge::open},  {kBlock1, Pass::backward},
      {kActivation, Pass::backward}, {kBlock0, Pass::backward, UseEdge::close}, {kEmbed, Pass::backward}};
}

void run_nested(Engine& engine, int step) {
  const ToyStep how{.step = step};
  const auto backward = [&](UnitId unit) {
    UnitLease lease = engine.use(unit, Pass::backward);
    write_gradients(engine, lease, how);
    lease.end();
  };
  begin(engine);
  engine.use(kEmbed, Pass::forward).end();
  {
    UnitLease outer = engine.use(kBlock0, Pass::forward);
    const void* address = outer.parameter(kBlockWeight).data;
    engine.skip(kActivation, Pass::forward);
    engine.use(kBlock1, Pass::forward).end();
    EXPECT_EQ(outer.parameter(kBlockWeight).data, address);
    outer.end();
  }
  engine.use(kHead, Pass::forward).end();
  backward(kHead);
  {
    UnitLease outer = engine.use(kBlock0, Pass::backward);
    backward(kBlock1);
    engine.skip(kActivation, Pass::backward);
    write_gradients(engine, outer, how);
    outer.end();
  }
  backward(kEmbed);
}

void others_do(Engine& engine, const Wrong& wrong) {
  if (wrong.order.empty()) {
    toy_step(engine, {});
    return;
  }
  run_nested(engine, 0);
  (void)engine.step({.learning_rate = 0.01});
}

void PrintTo(const Wrong& wrong, std::ostream* out) { *out << wrong.name; }

class CallsOutOfOrder : public TestWithParam<Wrong> {};

TEST_P(CallsOutOfOrder, FailAtOnceHereAndSoonOnTheOthers) {
  const Wrong& wrong = GetParam();
  EngineOptions options = toy_options(3, wrong.stage);
  options.order = wrong.order;
  const IdVector<Fate> fates = run_failing(
      options, [&](Engine& engine, int rank) { rank == 1 ? wrong.call(engine) : others_do(engine, wrong); });
  EXPECT_EQ(fates[1].kind, Fate::Kind::usage) << fates[1].message;
  for (const std::string& word : wrong.words)
    EXPECT_NE(fates[1].message.find(word), std::string::npos) << word << " is not in: " << fates[1].message;
  for (int rank : {0, 2}) expect_blames(fates[rank], 1);
}

const std::vector<Wrong> kWrong = {
    {"wrong_unit",
     [](Engine& engine) { begin(engine), engine.use(kBlock0, Pass::forward).end(); },
     {"use", "forward of block.0", "forward of embed"}},
    {"wrong_pass",
     [](Engine& engine) { begin(engine), engine.use(kEmbed, Pass::backward).end(); },
     {"use", "backward of embed", "forward of embed"}},
    {"wrong_pass_replicated",
     [](Engine& engine) { begin(engine), engine.use(kEmbed, Pass::backward).end(); },
     {"use", "backward of embed", "forward of embed"},
     {},
     0},
    {"unknown_unit",
     [](Engine& engine) { begin(engine), engine.use(17, Pass::forward).end(); },
     {"use", "unit 17", "forward of embed"}},
    {"skip_wrong_unit",
     [](Engine& engine) { begin(engine), engine.skip(kHead, Pass::forward); },
     {"skip", "forward of head", "forward of embed"}},
    {"use_after_the_last",
     [](Engine& engine) {
       begin(engine);
       toy_uses(engine, {});
       engine.use(kEmbed, Pass::forward).end();
     },
     {"use", "forward of embed", "step()"}},
    {"step_too_early",
     [](Engine& engine) {
       begin(engine);
       engine.use(kEmbed, Pass::forward).end();
       (void)engine.step({});
     },
     {"step", "forward of block.0"}},
    {"step_with_a_lease_open",
     [](Engine& engine) {
       begin(engine);
       UnitLease lease = engine.use(kEmbed, Pass::forward);
       (void)engine.step({});
     },
     {"step", "the end of the lease of", "forward of embed"}},
    {"step_before_begin", [](Engine& engine) { (void)engine.step({}); }, {"step", "begin"}},
    {"begin_twice", [](Engine& engine) { begin(engine), begin(engine); }, {"begin", "forward of embed"}},
    {"use_before_begin",
     [](Engine& engine) { engine.use(kEmbed, Pass::forward).end(); },
     {"use", "forward of embed", "begin"}},
    {"skip_before_begin",
     [](Engine& engine) { engine.skip(kEmbed, Pass::forward); },
     {"skip", "forward of embed", "begin"}},
    {"abandon_before_begin", [](Engine& engine) { engine.abandon(); }, {"abandon", "begin"}},
    {"abandon_with_a_lease_open",
     [](Engine& engine) {
       begin(engine);
       UnitLease lease = engine.use(kEmbed, Pass::forward);
       engine.abandon();
     },
     {"abandon", "forward of embed"}},
    {"use_inside_a_lease",
     [](Engine& engine) {
       begin(engine);
       UnitLease lease = engine.use(kEmbed, Pass::forward);
       engine.use(kBlock0, Pass::forward).end();
     },
     {"use", "forward of block.0", "forward of embed"}},
    {"initialize_within_a_step",
     [](Engine& engine) { begin(engine), engine.initialize(toy_fill()); },
     {"initialize", "a step is running"}},
    {"read_within_a_step",
     [](Engine& engine) {
       begin(engine);
       float value = 0;
       engine.read(kEmbedBias, StateKind::master, 0, {&value, 1});
     },
     {"read", "a step is running"}},
    {"gradient_in_forward",
     [](Engine& engine) {
       begin(engine);
       const UnitLease lease = engine.use(kEmbed, Pass::forward);
       lease.gradient(kEmbedWeight);
     },
     {"gradient of 'embed.weight'", "forward", "backward only"}},
    {"gradient_of_frozen",
     [](Engine& engine) {
       begin(engine);
       for (UnitId unit = 0; unit <= kHead; ++unit) engine.skip(unit, Pass::forward);
       for (UnitId unit = kHead; unit > kBlock0; --unit) engine.skip(unit, Pass::backward);
       const UnitLease lease = engine.use(kBlock0, Pass::backward);
       lease.gradient(kFrozen);
     },
     {"gradient of 'block.0.frozen'", "frozen"}},
    {"parameter_of_another_unit",
     [](Engine& engine) {
       begin(engine);
       const UnitLease lease = engine.use(kEmbed, Pass::forward);
       lease.parameter(kBlockWeight);
     },
     {"parameter 2", "'embed'", "0 to 1"}},
    {"parameter_of_a_unit_without",
     [](Engine& engine) {
       begin(engine);
       engine.skip(kEmbed, Pass::forward);
       engine.skip(kBlock0, Pass::forward);
       const UnitLease lease = engine.use(kActivation, Pass::forward);
       lease.parameter(kBlockWeight);
     },
     {"parameter 2", "'activation'", "no parameters"}},
    {"lease_used_after_its_end",
     [](Engine& engine) {
       begin(engine);
       UnitLease lease = engine.use(kEmbed, Pass::forward);
       UnitLease moved = std::move(lease);
       lease.end();
     },
     {"the lease has ended"}},
    {"outer_lease_ended_first",
     [](Engine& engine) {
       begin(engine);
       engine.skip(kEmbed, Pass::forward);
       UnitLease outer = engine.use(kBlock0, Pass::forward);
       UnitLease inner = engine.use(kActivation, Pass::forward);
       outer.end();
     },
     {"end", "forward of block.0", "innermost", "forward of activation"},
     nested_order()},
    {"outer_lease_ended_too_early",
     [](Engine& engine) {
       begin(engine);
       engine.skip(kEmbed, Pass::forward);
       UnitLease outer = engine.use(kBlock0, Pass::forward);
       engine.skip(kActivation, Pass::forward);
       outer.end();
     },
     {"end", "forward of block.0", "forward of block.1"},
     nested_order()},
    {"use_where_the_outer_must_end",
     [](Engine& engine) {
       begin(engine);
       engine.skip(kEmbed, Pass::forward);
       UnitLease outer = engine.use(kBlock0, Pass::forward);
       engine.skip(kActivation, Pass::forward);
       engine.skip(kBlock1, Pass::forward);
       engine.use(kHead, Pass::forward).end();
     },
     {"use", "forward of head", "the end of the lease of", "forward of block.0"},
     nested_order()},
    {"skip_of_an_outer_use",
     [](Engine& engine) {
       begin(engine);
       engine.skip(kEmbed, Pass::forward);
       engine.skip(kBlock0, Pass::forward);
     },
     {"skip", "forward of block.0", "inside it"},
     nested_order()},
};

INSTANTIATE_TEST_SUITE_P(Calls, CallsOutOfOrder, ::testing::ValuesIn(kWrong),
                         [](const ::testing::TestParamInfo<Wrong>& made) { return made.param.name; });

TEST(Lease, DestroyedWithoutEndFailsAllRanks) {
  const IdVector<Fate> fates = run_failing(toy_options(3, 3), [](Engine& engine, int rank) {
    if (rank != 1) {
      toy_step(engine, {});
      return;
    }
    begin(engine);
    { const UnitLease lease = engine.use(kEmbed, Pass::forward); }
    engine.use(kBlock0, Pass::forward).end();
  });
  EXPECT_EQ(fates[1].kind, Fate::Kind::usage);
  for (const char* word : {"use", "failed before", "forward of embed", "destroyed before end()"})
    EXPECT_NE(fates[1].message.find(word), std::string::npos) << fates[1].message;
  for (int rank : {0, 2}) {
    expect_blames(fates[rank], 1);
    EXPECT_NE(fates[rank].message.find("destroyed before end()"), std::string::npos);
  }
}

TEST(Engine, StaysFailed) {
  EXPECT_THROW(run_local(1, kBlocking,
                         [](Communicator world) {
                           Engine engine(world, toy_units(DType::fp32), toy_options(1, 0));
                           engine.initialize(toy_fill());
                           begin(engine);
                           EXPECT_THROW(engine.step({}), UsageError);
                           for (const auto& call : std::vector<std::function<void()>>{
                                    [&] { begin(engine); }, [&] { engine.use(kEmbed, Pass::forward).end(); },
                                    [&] { engine.skip(kEmbed, Pass::forward); },
                                    [&] { (void)engine.step({}); }, [&] { engine.abandon(); },
                                    [&] { engine.initialize(toy_fill()); }, [&] { engine.set_counters({}); }})
                             try {
                               call();
                               ADD_FAILURE() << "a failed engine went on";
                             } catch (const UsageError& error) {
                               EXPECT_NE(std::string(error.what()).find("failed before: step: the program"),
                                         std::string::npos)
                                   << error.what();
                             }
                         }),
               Error);  // the rank said that it failed
}

TEST(Lease, QuestionsThatThrowLeaveTheStepRunning) {
  run_local(2, kBlocking, [](Communicator world) {
    Engine engine(world, toy_units(DType::bf16), toy_options(2, 3));
    engine.initialize(toy_fill());
    begin(engine);
    for (UnitId unit = 0; unit <= kHead; ++unit) {
      UnitLease lease = engine.use(unit, Pass::forward);
      EXPECT_EQ(lease.unit(), unit);
      EXPECT_EQ(lease.pass(), Pass::forward);
      EXPECT_EQ(lease.microbatch(), 0);
      EXPECT_THROW(lease.parameter(99), UsageError);
      EXPECT_THROW(lease.gradient(engine.layout().first_parameter(unit)), UsageError);
      lease.end();
      EXPECT_THROW(lease.end(), UsageError);
      EXPECT_THROW(lease.parameter(0), UsageError);
    }
    for (UnitId unit = kHead; unit >= 0; --unit) engine.skip(unit, Pass::backward);
    EXPECT_TRUE(engine.step({.learning_rate = 0.1}).applied);
  });
}

TEST(NestedLeases, GiveTheSameBitsAsPlainOnes) {
  for (int stage : {0, 3}) {
    std::vector<float> plain, nested;
    run_local(2, kBlocking, [&](Communicator world) {
      for (bool nest : {false, true}) {
        EngineOptions options = toy_options(2, stage);
        options.debug.poison = true;
        if (nest) options.order = nested_order();
        Engine engine(world, toy_units(DType::bf16), options);
        engine.initialize(toy_fill());
        for (int step = 0; step < 3; ++step) {
          if (nest) {
            run_nested(engine, step);
          } else {
            begin(engine);
            toy_uses(engine, {.step = step});
          }
          EXPECT_TRUE(engine.step({.learning_rate = 0.01}).applied);
        }
        const std::vector<float> all = read_everything(engine);
        if (world.rank() == 0) (nest ? nested : plain) = all;
      }
    });
    EXPECT_EQ(nested, plain) << "stage " << stage;
  }
}

// What a skipped use hands to the next pipeline rank is zeros, not what another microbatch left there.
TEST(Skip, HandsZerosOn) {
  for (const Pass skipped : {Pass::forward, Pass::backward})
    for (const bool poison : {false, true}) {
      std::vector<float> received;  // by whom the skipped use hands it to, by microbatch
      run_local(2, {}, [&](Communicator world) {
        EngineOptions options;
        options.mesh = {.pipeline = 2, .shard = 1};
        options.debug.poison = poison;
        options.programs[0].microbatches = 4;
        options.programs[0].activations.units = {UnitActivations{.output_bytes = 64}, UnitActivations{}};
        const std::vector<UnitSpec> units = {{.name = "first", .parameters = {{.name = "a", .shape = {16}}}},
                                             {.name = "last", .parameters = {{.name = "b", .shape = {16}}}}};
        Engine engine(world, units, options);
        engine.initialize(
            [](ParameterId, std::int64_t, std::span<float> values) { std::ranges::fill(values, 1.0f); });
        engine.begin(StepKind::train, 4);
        const UnitId skips = skipped == Pass::forward ? 0 : 1;
        for (const Instruction& use : engine.running().instructions) {
          if (use.op != Opcode::use) continue;
          if (use.microbatch == 2 && use.pass == skipped && use.unit == skips) {
            engine.skip(use.unit, use.pass);
            continue;
          }
          UnitLease lease = engine.use(use.unit, use.pass);
          const bool forward = use.pass == Pass::forward;
          auto* const handed = static_cast<float*>(
              lease.address(use.unit == 0 ? (forward ? Role::output : Role::output_gradient)
                                          : (forward ? Role::input : Role::input_gradient)));
          if (use.pass == skipped && use.unit == 1 - skips)
            received.insert(received.end(), handed, handed + 16);
          if (use.unit == (forward ? 0 : 1))
            std::fill_n(handed, 16, 7.0f + static_cast<float>(use.microbatch));
          if (!forward) {
            const TensorView gradient = lease.gradient(use.unit);
            std::fill_n(static_cast<float*>(gradient.data), gradient.numel, 1.0f);
          }
          lease.end();
        }
        EXPECT_TRUE(engine.step({.learning_rate = 0.0, .weight = world.rank() == 1 ? 3.0 : 0.0}).applied);
      });
      ASSERT_EQ(received.size(), 64U);
      for (std::size_t at = 0; at < received.size(); ++at)
        EXPECT_EQ(received[at], at / 16 == 2 ? 0.0f : 7.0f + static_cast<float>(at / 16)) << at;
    }
}

TEST(OrderRecorder, WritesWholeAndNestedUses) {
  OrderRecorder recorder;
  std::vector<Use> open;
  for (const Use& use : nested_order()) {
    if (use.edge != UseEdge::close) recorder.begin(use.unit, use.pass);
    if (use.edge == UseEdge::open) {
      EXPECT_THROW(recorder.order(), UsageError);
    }
    if (use.edge != UseEdge::open) recorder.end(use.unit, use.pass);
  }
  EXPECT_EQ(recorder.order(), nested_order());
}

TEST(OrderRecorder, RefusesWhatDoesNotNest) {
  OrderRecorder recorder;
  const auto refused = [&](UnitId unit, const std::string& reason) {
    try {
      recorder.end(unit, Pass::forward);
    } catch (const UsageError& error) {
      EXPECT_EQ(error.what(), "OrderRecorder: end of forward of unit " + std::to_string(unit) + reason);
      return;
    }
    ADD_FAILURE() << "accepted";
  };
  refused(0, ", and no use has begun");
  recorder.begin(0, Pass::forward);
  recorder.begin(1, Pass::forward);
  refused(0, ", but the innermost use that has begun is forward of unit 1");
  EXPECT_THROW(recorder.end(1, Pass::backward), UsageError);
  recorder.end(1, Pass::forward);
  EXPECT_THROW(recorder.order(), UsageError);
  recorder.end(0, Pass::forward);
  EXPECT_EQ(recorder.order(),
            (std::vector<Use>{
                {0, Pass::forward, UseEdge::open}, {1, Pass::forward}, {0, Pass::forward, UseEdge::close}}));
}

}  // namespace
}  // namespace tessera::testing
