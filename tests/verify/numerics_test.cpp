// What decides the bits: how programs add gradients up, in words, and the facts of two runs compared.
#include <gtest/gtest.h>

#include <map>

#include "tessera/numeric_differences.h"
#include "tessera/numerics.h"
#include "tessera/prove.h"
#include "tessera/step_spec.h"
#include "tests/program/random_world.h"
#include "tests/program/small_models.h"

namespace tessera::testing {
namespace {

// Two blocks, and a head that is tied to the embedding.
std::vector<UnitSpec> units(DType type, bool tied) {
  return {
      {.name = "embed", .parameters = {{.name = "token", .shape = {300}, .dtype = type}}},
      {.name = "block.0", .parameters = {{.name = "up", .shape = {700}, .dtype = type}}},
      {.name = "block.1", .parameters = {{.name = "down", .shape = {500}, .dtype = type}}},
      {.name = "head",
       .parameters = {{.name = "norm", .shape = {20}, .dtype = type},
                      {.name = "logits", .shape = {300}, .dtype = type, .tied_to = tied ? "token" : ""}}}};
}

struct Trained {
  Mesh mesh = {};
  int microbatches = 1;
  Strategy strategy = {};
  DType type = DType::bf16;
  bool tied = false;
  int last_round_ranks = 0;
};

Numerics numerics_of(const Trained& run) {
  const Layout layout(units(run.type, run.tied), run.mesh.shard, run.mesh.replicate);
  StepSpec spec;
  spec.microbatches = run.microbatches;
  spec.last_round_ranks = run.last_round_ranks;
  spec.strategy = run.strategy;
  const std::vector<StepSpec> specs = {spec};
  const std::vector<PlannedPrograms> planned = plan_pipeline(layout, run.mesh, specs);
  std::vector<RankPrograms> ranks;
  for (const PlannedPrograms& of : planned) ranks.push_back({of.programs, &of.plan, of.first_data_rank});
  Numerics numerics;
  const VerifyReport report = prove_all(run.mesh, layout, ranks, {}, &numerics);
  EXPECT_TRUE(report.ok()) << report.to_string();
  return numerics;
}

std::map<std::string, std::string> sums_of(const Trained& run) {
  std::map<std::string, std::string> sums;
  for (const NumericFact& fact : numerics_of(run).program) sums[fact.what] = fact.value;
  return sums;
}

std::string order_of(const std::string& unit) {
  return "the order in which gradients of unit '" + unit + "' are added";
}

Strategy strategy(int stage, ReduceWhen reduce) {
  return {.placements = Placements::of_stage(stage), .reduce = reduce};
}

TEST(GlobalSum, OfEachMicrobatchIsOneChainInAnyWorld) {
  const Trained alone = {.microbatches = 12, .strategy = strategy(0, ReduceWhen::each)};
  EXPECT_EQ(sums_of(alone), (std::map<std::string, std::string>{{order_of("embed"), "0…11"},
                                                                {order_of("block.0"), "0…11"},
                                                                {order_of("block.1"), "0…11"},
                                                                {order_of("head"), "0…11"}}));
  for (const int shards : {2, 3, 4, 5, 6, 7, 8, 12, 16})
    for (const int stage : {0, 1, 2, 3})
      for (const int pipeline : {1, 2}) {
        const Rounds rounds = Rounds::of(12, {.shard = shards});
        EXPECT_EQ(numerics_of({.mesh = {.pipeline = pipeline, .shard = shards},
                               .microbatches = rounds.count,
                               .strategy = strategy(stage, ReduceWhen::each),
                               .last_round_ranks = rounds.last_ranks}),
                  numerics_of(alone))
            << shards << " shards, stage " << stage << ", pipeline " << pipeline;
      }
}

TEST(GlobalSum, OfEachRanksMicrobatchesIsASumOfSums) {
  const auto of = [](int shards, int microbatches) {
    return sums_of({.mesh = {.shard = shards},
                    .microbatches = microbatches,
                    .strategy = strategy(2, ReduceWhen::last)})[order_of("block.0")];
  };
  EXPECT_EQ(of(1, 4), "0…3");
  EXPECT_EQ(of(4, 1), "0…3");
  EXPECT_EQ(of(2, 2), "(0, 2) + (1, 3)");
  EXPECT_EQ(of(2, 4), "(0, 2…6) + (1, 3…7)");
  EXPECT_EQ(of(4, 8), "(0, 4…28) + (1, 5…29) + … + (3, 7…31)");
}

TEST(GlobalSum, OfReplicasIsASumOfSums) {
  EXPECT_EQ(sums_of({.mesh = {.replicate = 2, .shard = 2},
                     .microbatches = 2,
                     .strategy = strategy(2, ReduceWhen::each)})[order_of("block.0")],
            "(0, 1, 4, 5) + (2, 3, 6, 7)");
  EXPECT_EQ(sums_of({.mesh = {.replicate = 2, .shard = 3},
                     .microbatches = 5,
                     .strategy = strategy(2, ReduceWhen::each)})[order_of("block.0")],
            "(0…2, 6…8, …, 24…26) + (3…5, 9…11, …, 27…29)");
}

TEST(GlobalSum, OfBlocksIsATree) {
  const auto of = [](Mesh mesh, int microbatches, int blocks) {
    Strategy tree = strategy(2, ReduceWhen::automatic);
    tree.blocks = blocks;
    const Rounds rounds = Rounds::of(microbatches, mesh, blocks);
    return sums_of({.mesh = mesh,
                    .microbatches = rounds.count,
                    .strategy = tree,
                    .last_round_ranks = rounds.last_ranks})[order_of("block.0")];
  };
  for (const Mesh& mesh : {Mesh{},
                           {.shard = 3},
                           {.shard = 5},
                           {.shard = 16},
                           {.replicate = 2},
                           {.replicate = 4},
                           {.replicate = 4, .shard = 2},
                           {.replicate = 2, .shard = 5}}) {
    EXPECT_EQ(of(mesh, 12, 4), "((0…2) + (3…5)) + ((6…8) + (9…11))") << to_string(mesh);
    EXPECT_EQ(of(mesh, 4, 4), "(0, 1) + (2, 3)") << to_string(mesh);
  }
  EXPECT_EQ(of({.shard = 3}, 16, 8), of({.replicate = 8}, 16, 8));
  EXPECT_EQ(of({.replicate = 2, .shard = 3}, 12, 2), "(0…5) + (6…11)");
}

TEST(GlobalSum, SaysWhichUsesMakeAMicrobatchsGradientAndInWhichType) {
  for (const DType type : {DType::fp32, DType::bf16}) {
    const std::string within = "head + embed in " + std::string(name_of(type)) + ": ";
    const auto token = [&](Mesh mesh, int microbatches) {
      return sums_of({.mesh = mesh,
                      .microbatches = microbatches,
                      .strategy = strategy(1, ReduceWhen::each),
                      .type = type,
                      .tied = true})[order_of("embed")];
    };
    EXPECT_EQ(token({}, 4), within + "0…3");
    EXPECT_EQ(token({.shard = 2}, 2), within + "0…3");
    // On two pipeline ranks each use has a sum of its own.
    EXPECT_EQ(token({.pipeline = 2}, 4), "(embed: 0…3) + (head: 0…3)");
  }
}

TEST(GlobalSum, DiffersWhereTheOrderDoes) {
  const auto of = [](int shards, int microbatches, ReduceWhen reduce) {
    return numerics_of(
        {.mesh = {.shard = shards}, .microbatches = microbatches, .strategy = strategy(2, reduce)});
  };
  EXPECT_NE(of(2, 2, ReduceWhen::each), of(2, 2, ReduceWhen::last));
  EXPECT_NE(of(2, 2, ReduceWhen::each), of(2, 1, ReduceWhen::each));
  EXPECT_NE(of(2, 4, ReduceWhen::last), of(4, 2, ReduceWhen::last));
}

// ---- facts ----

const Numerics kSome = {.program = {{"the gradients of unit 'a\tb'", "0…3"}},
                        .run = {{"optimizer", "adamw"}, {"clip.max_norm", "1"}}};

TEST(Numerics, AreKeptAsText) {
  Numerics plain = kSome;
  plain.program[0].what = "the gradients of unit 'a b'";  // what separates facts is no part of one
  EXPECT_EQ(numerics_of_text(to_text(kSome)), plain);
  EXPECT_EQ(numerics_of_text(to_text(plain)), plain);
  EXPECT_EQ(numerics_of_text(to_text({})), Numerics());
  const std::string version = to_text({});
  for (const std::string& wrong :
       {std::string(), std::string("numerics 2\n"), version + "program", version + "program\ta",
        version + "program\ta\tb", version + "else\ta\tb\n"})
    EXPECT_THROW(numerics_of_text(wrong), UsageError) << wrong;
}

TEST(Numerics, HaveAFingerprintOfEachPart) {
  const std::string print = fingerprint_of(kSome);
  ASSERT_EQ(print.size(), 33U);
  Numerics program = kSome, run = kSome;
  program.program[0].value = "0…4";
  run.run[1].value = "0";
  EXPECT_NE(fingerprint_of(program).substr(0, 16), print.substr(0, 16));
  EXPECT_EQ(fingerprint_of(program).substr(16), print.substr(16));
  EXPECT_EQ(fingerprint_of(run).substr(0, 17), print.substr(0, 17));
  EXPECT_NE(fingerprint_of(run).substr(17), print.substr(17));
  EXPECT_EQ(fingerprint_of(numerics_of_text(to_text(kSome))), print);
}

std::vector<std::string> told(const Numerics& a, const Numerics& b) {
  std::vector<std::string> words;
  for (const NumericDifference& of : differences(a, b))
    words.push_back(in_words(of, "now", "in the checkpoint"));
  return words;
}

TEST(Numerics, AreComparedFactByFact) {
  EXPECT_EQ(told(kSome, kSome), std::vector<std::string>());
  Numerics other = kSome;
  other.run[1].value = "0.5";
  EXPECT_EQ(told(kSome, other), std::vector<std::string>{"clip.max_norm: 1 now, 0.5 in the checkpoint"});
  // One fact more is one difference, wherever it stands.
  other = kSome;
  other.run.insert(other.run.begin(), {"a new fact", "3"});
  EXPECT_EQ(told(kSome, other), std::vector<std::string>{"a new fact: nothing now, 3 in the checkpoint"});
  EXPECT_EQ(told(other, kSome), std::vector<std::string>{"a new fact: 3 now, nothing in the checkpoint"});
  // What a text does not keep is no difference.
  EXPECT_EQ(told(kSome, numerics_of_text(to_text(kSome))).size(), 2U);  // the name of the first fact
  other = kSome;
  other.run[0].value = "adam\tw";
  EXPECT_EQ(told(other, numerics_of_text(to_text(other))).size(), 2U);
}

}  // namespace
}  // namespace tessera::testing
