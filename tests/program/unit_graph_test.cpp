// Values and parts: which parts a pass runs, what a declaration may not say, and the programs made of them.
#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "src/program/happens_before.h"
#include "tessera/activations.h"
#include "tessera/error.h"
#include "tests/program/mesh_programs.h"
#include "tests/program/small_graph.h"
#include "tests/program/small_models.h"

namespace tessera::testing {
namespace {

std::vector<std::string> names_in(const UnitGraph& graph, Pass pass, Recompute recompute) {
  std::vector<std::string> names;
  for (const int part : graph.parts_in(pass, {.recompute = recompute}))
    names.push_back(graph.parts[part].name);
  return names;
}

using Names = std::vector<std::string>;

TEST(UnitGraph, ARecomputeRunsThePartsThatWriteWhatIsMissing) {
  const UnitGraph graph = small_graph();
  EXPECT_EQ(names_in(graph, Pass::forward, Recompute::none), (Names{"norm", "up", "bend", "down"}));
  EXPECT_EQ(names_in(graph, Pass::backward, Recompute::full),
            (Names{"down parameters", "down", "bend", "up parameters", "up", "norm"}));
  EXPECT_EQ(names_in(graph, Pass::recompute, Recompute::none), Names{});
  // What is cheap: from the input, and from what was saved.
  EXPECT_EQ(names_in(graph, Pass::recompute, Recompute::selective), (Names{"norm", "bend"}));
  // All that backward reads, and not what only the output needs.
  EXPECT_EQ(names_in(graph, Pass::recompute, Recompute::full), (Names{"norm", "up", "bend"}));
}

TEST(UnitGraph, APartThatRecomputesFromLessRunsWhereThatWasKept) {
  UnitGraph graph = small_graph();
  graph.parts.push_back({.name = "norm from up",
                         .pass = Pass::recompute,
                         .reads = {kUpValue},
                         .writes = {kNormValue, kStatisticsValue}});
  EXPECT_EQ(names_in(graph, Pass::recompute, Recompute::selective), (Names{"norm from up", "bend"}));
  EXPECT_EQ(names_in(graph, Pass::recompute, Recompute::full), (Names{"norm", "up", "bend"}));
}

TEST(UnitGraph, WhatKeepsNothingHasNoRecompute) {
  UnitGraph graph = UnitActivations{.output_bytes = 64};
  EXPECT_EQ(names_in(graph, Pass::recompute, Recompute::selective), Names{});
  // The trainer keeps more, in memory of its own.
  EXPECT_EQ(names_in(graph, Pass::recompute, Recompute::full), Names{"forward"});
  graph.keeps_more = false;
  EXPECT_EQ(names_in(graph, Pass::recompute, Recompute::full), Names{});
}

TEST(UnitGraph, SizesAreOnePartAPass) {
  const UnitGraph graph = UnitActivations{
      .output_bytes = 64, .saved_bytes = 128, .recomputable_bytes = 256, .workspace_bytes = 512};
  EXPECT_NO_THROW(graph.check("unit"));
  EXPECT_EQ(graph.bytes(Keep::saved), 128);
  EXPECT_EQ(graph.bytes(Keep::recomputable), 256);
  EXPECT_EQ(graph.workspace_bytes(), 512);
  EXPECT_TRUE(graph.reads_batch());
  EXPECT_EQ(names_in(graph, Pass::forward, Recompute::none), Names{"forward"});
  EXPECT_EQ(names_in(graph, Pass::recompute, Recompute::selective), Names{"again"});
  EXPECT_EQ(names_in(graph, Pass::recompute, Recompute::full), Names{"forward"});
  EXPECT_EQ(names_in(graph, Pass::backward, Recompute::none), Names{"backward"});
}

struct Refused {
  const char* words;  // of the message
  std::function<void(UnitGraph&)> spoil;
};

// The graph is right, and each way to spoil it is refused in these words.
void expect_refused(const UnitGraph& right, int tensor_ranks, const std::vector<Refused>& all) {
  EXPECT_NO_THROW(right.check("u", tensor_ranks));
  for (const Refused& refused : all) {
    UnitGraph graph = right;
    refused.spoil(graph);
    try {
      graph.check("u", tensor_ranks);
      ADD_FAILURE() << "not refused: " << refused.words;
    } catch (const UsageError& error) {
      EXPECT_NE(std::string(error.what()).find(refused.words), std::string::npos) << error.what();
    }
  }
}

TEST(UnitGraph, RefusesWhatMeansNothing) {
  const std::vector<Refused> all = {
      {"'up' of unit 'u' has -1 bytes", [](UnitGraph& of) { of.values[kUpValue].bytes = -1; }},
      {"has -4 bytes of output", [](UnitGraph& of) { of.output_bytes = -4; }},
      {"can be over a value before its own", [](UnitGraph& of) { of.values[kNormValue].over = kUpValue; }},
      {"only what a pass needs can be", [](UnitGraph& of) { of.values[kBentGradient].keep = Keep::saved; }},
      {"is over 'bent', which has", [](UnitGraph& of) { of.values[kBentGradient].bytes += 1; }},
      {"declares no part of backward",
       [](UnitGraph& of) {
         std::erase_if(of.parts, [](const PartSpec& part) { return part.pass == Pass::backward; });
       }},
      {"reads value 'up', which no part before it writes",
       [](UnitGraph& of) { std::swap(of.parts[1], of.parts[2]); }},
      {"it was kept for its pass only", [](UnitGraph& of) { of.values[kUpValue].keep = Keep::pass; }},
      {"touches value 99", [](UnitGraph& of) { of.parts[0].reads.push_back(99); }},
      {"touches value -4", [](UnitGraph& of) { of.parts[0].reads.push_back(SharedValue::output_gradient); }},
      {"touches value -3", [](UnitGraph& of) { of.parts[4].writes.push_back(SharedValue::output); }},
      {"which only backward does", [](UnitGraph& of) { of.parts[0].gradients = std::vector<int>{0}; }},
      {"which no part of forward writes", [](UnitGraph& of) { of.parts[3].writes.clear(); }},
      {"which another part writes already",
       [](UnitGraph& of) { of.parts[2].writes.push_back(SharedValue::output); }},
      {"has -8 bytes of workspace", [](UnitGraph& of) { of.parts[0].workspace_bytes = -8; }},
      {"which no part of backward so far",
       [](UnitGraph& of) { std::erase(of.parts[4].reads, ValueId{kBentValue}); }},
  };
  expect_refused(small_graph(), 1, all);
}

std::vector<std::string> steps_in(const UnitGraph& graph, Pass pass, Recompute recompute,
                                  StepKind kind = StepKind::train) {
  std::vector<std::string> names;
  for (const GraphStep& step : graph.steps_in(pass, {.recompute = recompute}, kind))
    names.push_back(step.part < 0 ? "-> " + graph.values[step.value].name : graph.parts[step.part].name);
  return names;
}

// Besides those that a choice names by their kind: the parts that write them, and what these read and is not
// kept.
TEST(UnitGraph, ValuesCanBeMadeAgainOneByOne) {
  const UnitGraph graph = small_graph();
  const auto again = [&](const ActivationChoice& choice) {
    Names names;
    for (const int part : graph.parts_in(Pass::recompute, choice)) names.push_back(graph.parts[part].name);
    return names;
  };
  EXPECT_EQ(again({.again = {kBentValue}}), Names{"bend"});
  EXPECT_EQ(again({.again = {kUpValue}}), Names{"up"});
  EXPECT_EQ(again({.again = {kUpValue, kBentValue}}), (Names{"up", "bend"}));
  EXPECT_EQ(again({.recompute = Recompute::selective, .again = {kUpValue}}), (Names{"norm", "up", "bend"}));
  EXPECT_EQ(again({.recompute = Recompute::selective, .again = {kUpValue}}),
            again({.recompute = Recompute::full}));

  const auto refusal = [&](const ActivationChoice& choice, bool declared) {
    StepSpec spec{.strategy = {}, .activations = declared ? small_graphs(2) : ActivationSpec{}, .order = {}};
    spec.strategy.unit_activations.assign(2, choice);
    try {
      build_step(Layout(chain(2, 100), 1), {}, spec);
    } catch (const UsageError& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_EQ(refusal({.again = {kUpValue}}, true), "");
  EXPECT_NE(refusal({.again = {kUpValue}}, false).find("but activations declare none"), std::string::npos);
  for (const ValueId wrong : {ValueId{-2}, ValueId{kBentGradient}, ValueId{99}})
    EXPECT_NE(refusal({.again = {wrong}}, true).find("names value " + std::to_string(wrong)),
              std::string::npos);
  EXPECT_NE(refusal({.recompute = Recompute::full, .again = {kUpValue}}, true).find("leave `again` empty"),
            std::string::npos);
  EXPECT_NE(refusal({.again = {kBentValue, kUpValue}}, true).find("does not ascend"), std::string::npos);
}

// Behind the part that writes what they are made of; of what was there before, one part ahead of the reader.
TEST(UnitGraph, ExchangesComeAsSoonAsTheyCan) {
  const UnitGraph graph = small_split_graph(2);
  EXPECT_TRUE(graph.has_exchanges());
  EXPECT_FALSE(small_graph().has_exchanges());
  using enum Pass;
  EXPECT_EQ(steps_in(graph, forward, Recompute::none),
            (Names{"norm", "-> norm.whole", "up", "down", "-> down.sum", "add"}));
  EXPECT_EQ(steps_in(graph, backward, Recompute::none),
            (Names{"-> gradient.whole", "down parameters", "-> norm.whole", "down", "up parameters", "up",
                   "-> norm.gradient.sum", "norm"}));
  // What backward's exchanges are made of is made again, and what its parts read.
  EXPECT_EQ(steps_in(graph, recompute, Recompute::selective), Names{"norm"});
  EXPECT_EQ(steps_in(graph, recompute, Recompute::full), (Names{"norm", "-> norm.whole", "up"}));
}

TEST(UnitGraph, AnExchangeGoesOnWithWhatAnotherMakes) {
  UnitGraph graph = small_split_graph(2);
  const ValueId whole = graph.values.count();
  graph.values.push_back({.name = "down.whole", .bytes = 2048, .exchanged = kDownSum});
  graph.parts[3].reads.back() = whole;
  EXPECT_NO_THROW(graph.check("u", 2));
  EXPECT_EQ(steps_in(graph, Pass::forward, Recompute::none),
            (Names{"norm", "-> norm.whole", "up", "down", "-> down.sum", "-> down.whole", "add"}));
}

TEST(UnitGraph, WhatOnlyAnEvaluationNeedsATrainingStepLeavesOut) {
  UnitGraph graph = small_graph();
  graph.parts.push_back({.name = "losses", .reads = {kUpValue}, .evaluation_only = true});
  EXPECT_NO_THROW(graph.check("u"));
  EXPECT_EQ(steps_in(graph, Pass::forward, Recompute::none), (Names{"norm", "up", "bend", "down"}));
  EXPECT_EQ(steps_in(graph, Pass::forward, Recompute::none, StepKind::evaluate),
            (Names{"norm", "up", "bend", "down", "losses"}));
}

// What writes gradients alone can run apart; what it reads then has memory of its own.
TEST(UnitGraph, ABackwardIsSplitWhereGradientsStandApart) {
  const UnitGraph split = split_backward(small_graph());
  EXPECT_TRUE(split.is_split);
  EXPECT_EQ(names_in(split, Pass::backward, Recompute::none), (Names{"down", "bend", "up", "norm"}));
  EXPECT_EQ(names_in(split, Pass::weight_gradient, Recompute::none),
            (Names{"down parameters", "up parameters"}));
  EXPECT_EQ(split.values[kBentGradient].over, kNoValue);  // weight gradients read what lies below
  EXPECT_EQ(split.values[kUpGradient].over, kBentGradient);
  EXPECT_EQ(split.values[kNormGradient].over, kNoValue);
  EXPECT_EQ(names_in(split, Pass::recompute, Recompute::full), (Names{"norm", "up", "bend"}));
  EXPECT_NO_THROW(split.check("u"));

  UnitGraph both = small_graph();
  both.parts[4].writes = {kBentGradient};
  both.parts[5].writes.clear();
  EXPECT_FALSE(split_backward(both).is_split);
  UnitGraph changed = small_graph();
  changed.parts[8].writes.push_back(kUpGradient);
  EXPECT_FALSE(split_backward(changed).is_split);
}

// An embedding's backward is nothing else.
TEST(UnitGraph, AllOfABackwardCanRunApart) {
  UnitGraph graph;
  graph.output_bytes = 64;
  graph.parts = {
      {.name = "embed", .reads = {SharedValue::batch}, .writes = {SharedValue::output}},
      {.name = "embed", .pass = Pass::backward, .reads = {SharedValue::batch, SharedValue::output_gradient}}};
  EXPECT_NO_THROW(graph.check("u"));
  const UnitGraph split = split_backward(graph);
  EXPECT_TRUE(split.is_split);
  EXPECT_EQ(names_in(split, Pass::backward, Recompute::none), Names{});
  EXPECT_EQ(names_in(split, Pass::weight_gradient, Recompute::none), Names{"embed"});
}

// A part of backward that writes both may have one that writes the gradients apart.
TEST(UnitGraph, APartForWeightGradientsTakesThemFromAnother) {
  UnitGraph graph = small_graph();
  graph.parts[9].gradients = std::vector<int>{2};
  EXPECT_FALSE(split_backward(graph).is_split);
  graph.parts.push_back({.name = "norm parameters",
                         .pass = Pass::weight_gradient,
                         .reads = {SharedValue::input, kStatisticsValue, kNormGradient},
                         .gradients = std::vector<int>{2}});
  EXPECT_NO_THROW(graph.check("u"));
  EXPECT_EQ(names_in(graph, Pass::weight_gradient, Recompute::none), Names{});
  const UnitGraph split = split_backward(graph);
  EXPECT_EQ(split.parts[9].gradients, std::vector<int>{});
  EXPECT_EQ(names_in(split, Pass::weight_gradient, Recompute::none),
            (Names{"down parameters", "up parameters", "norm parameters"}));
  graph.parts.back().writes = {kNormGradient};
  EXPECT_THROW(graph.check("u"), UsageError);
}

// One that names no gradients takes all of them.
TEST(UnitGraph, AUnitOfOnePartCanSplitItsBackward) {
  const UnitGraph whole = UnitActivations{.output_bytes = 8, .saved_bytes = 8};
  EXPECT_FALSE(split_backward(whole).is_split);
  const UnitGraph graph = UnitActivations{.output_bytes = 8, .saved_bytes = 8, .splits_backward = true};
  EXPECT_NO_THROW(graph.check("u"));
  EXPECT_EQ(names_in(graph, Pass::weight_gradient, Recompute::none), Names{});
  EXPECT_TRUE(graph.parts[UnitGraph::kBackward].writes_gradient(0));
  const UnitGraph split = split_backward(graph);
  EXPECT_EQ(names_in(split, Pass::weight_gradient, Recompute::none), Names{"weight gradient"});
  EXPECT_FALSE(split.parts[UnitGraph::kBackward].writes_gradient(0));
  EXPECT_TRUE(split.parts[UnitGraph::kWeightGradient].writes_gradient(0));
}

TEST(UnitGraph, ExchangesOfBackwardAreThereForWeightGradients) {
  const UnitGraph split = split_backward(small_split_graph(2));
  EXPECT_TRUE(split_backward(small_graph()).is_split);
  EXPECT_FALSE(split.is_split) << "its norm writes a gradient and a value";
  UnitGraph graph = small_split_graph(2);
  graph.parts.back().gradients = std::vector<int>{};
  graph.parts[4].gradients = std::vector<int>{1, 2};
  EXPECT_EQ(steps_in(split_backward(graph), Pass::backward, Recompute::none),
            (Names{"-> gradient.whole", "down", "up", "-> norm.gradient.sum", "norm"}));
  EXPECT_EQ(steps_in(split_backward(graph), Pass::weight_gradient, Recompute::none),
            (Names{"-> norm.whole", "down parameters", "up parameters"}));
}

TEST(UnitGraph, RefusesExchangesThatMeanNothing) {
  const std::vector<Refused> all = {
      {"reads value 'down.partial', which is a part of a sum",
       [](UnitGraph& of) { of.parts[3].reads.push_back(kDownPartial); }},
      {"writes value 'down.sum', which an exchange makes",
       [](UnitGraph& of) { of.parts[2].writes.push_back(kDownSum); }},
      {"is copied and exchanged from a value that is partial",
       [](UnitGraph& of) { of.values[kDownSum].held = Held::copied; }},
      {"is copied and exchanged from a value that is copied",
       [](UnitGraph& of) { of.values[kSplitNorm].held = Held::copied; }},
      {"the whole must be 2 times a part", [](UnitGraph& of) { of.values[kNormWhole].bytes += 4; }},
      {"the whole must be 2 times a part, in fp32",
       [](UnitGraph& of) { of.values[kDownPartial].type = DType::bf16; }},
      {"it can be from one before its own", [](UnitGraph& of) { of.values[kDownSum].exchanged = kNormSum; }},
      {"which no unit hands on to it",
       [](UnitGraph& of) { of.values[kDownSum].exchanged = SharedValue::output; }},
      {"it must be there in its pass only", [](UnitGraph& of) { of.values[kDownSum].keep = Keep::saved; }},
      {"reads value 'down.sum', which no part before it writes",
       [](UnitGraph& of) { of.parts[2].writes.clear(); }},
      {"which run forward only", [](UnitGraph& of) { of.parts[5].evaluation_only = true; }},
      {"reads value 'up', which no part before it writes",
       [](UnitGraph& of) { of.parts[1].evaluation_only = true; }},
  };
  expect_refused(small_split_graph(2), 2, all);
  try {
    small_split_graph(2).check("u");
    ADD_FAILURE() << "an exchange on one rank is not refused";
  } catch (const UsageError& error) {
    EXPECT_NE(std::string(error.what()).find("on which there is one rank"), std::string::npos);
  }
}

// One piece is exchanged behind the part that makes it. What is made again is sent ahead of its reader, piece
// by piece.
TEST(UnitGraph, PiecesAreExchangedOneByOne) {
  const InPieces in_pieces(2, 2);
  const UnitGraph& graph = in_pieces.graph;
  EXPECT_NO_THROW(graph.check("u", 2));
  const auto piece = [&](ValueId value, int number) {
    return "-> " + graph.values[in_pieces.first.at(value) + number].name;
  };
  using enum Pass;
  EXPECT_EQ(steps_in(graph, forward, Recompute::none),
            (Names{"norm", piece(kNormWhole, 0), piece(kNormWhole, 1), "up 0", "down 0", piece(kDownSum, 0),
                   "up 1", "down 1", piece(kDownSum, 1), "add 0", "add 1"}));
  EXPECT_EQ(steps_in(graph, backward, Recompute::none),
            (Names{piece(kGradientWhole, 0), "down 0", piece(kGradientWhole, 1), piece(kNormWhole, 0), "up 0",
                   "down 1", piece(kNormWhole, 1), piece(kNormSum, 0), "up 1", piece(kNormSum, 1),
                   "down parameters", "up parameters", "norm"}));
  EXPECT_EQ(steps_in(graph, recompute, Recompute::selective), Names{"norm"});
  EXPECT_EQ(steps_in(graph, recompute, Recompute::full),
            (Names{"norm", piece(kNormWhole, 0), piece(kNormWhole, 1), "up 0", "up 1"}));
  EXPECT_TRUE(graph.overlap(kSplitUp, in_pieces.first.at(kSplitUp)));
  EXPECT_FALSE(graph.overlap(in_pieces.first.at(kSplitUp), in_pieces.first.at(kSplitUp) + 1));
  EXPECT_EQ(graph.bytes(Keep::saved), small_split_graph(2).bytes(Keep::saved));
}

TEST(UnitGraph, RefusesPiecesThatMeanNothing) {
  const std::map<ValueId, ValueId> first = InPieces(2, 2).first;
  const auto of = [&](UnitGraph& graph, ValueId value, int number) -> ValueSpec& {
    return graph.values[first.at(value) + number];
  };
  const std::vector<Refused> all = {
      {"begins at byte 8, and the pieces before it end at 0",
       [&](UnitGraph& graph) { of(graph, kSplitUp, 0).begin = 8; }},
      {"is the last piece and ends at byte 1024; what it is a piece of has 2048",
       [&](UnitGraph& graph) {
         of(graph, kSplitUp, 0).bytes = of(graph, kSplitUp, 1).bytes = of(graph, kSplitUp, 1).begin = 512;
       }},
      {"has no bytes",
       [&](UnitGraph& graph) {
         of(graph, kSplitUp, 0).bytes = of(graph, kSplitUp, 1).begin = 0;
         of(graph, kSplitUp, 1).bytes = 2048;
       }},
      {"is copied and fp32, and a piece of 'norm', which is split and fp32",
       [&](UnitGraph& graph) { of(graph, kSplitNorm, 1).held = Held::copied; }},
      {"it is kept as that one is", [&](UnitGraph& graph) { of(graph, kSplitUp, 1).keep = Keep::saved; }},
      {"which is one itself",
       [&](UnitGraph& graph) {
         of(graph, kSplitUp, 0).bytes = 2048;
         of(graph, kSplitUp, 1).piece_of = first.at(kSplitUp);
         of(graph, kSplitUp, 1).begin = 0;
       }},
      {"is a piece of value -1; it can be one of a value before its own",
       [&](UnitGraph& graph) {
         of(graph, kSplitUp, 0).bytes = 2048;
         of(graph, kSplitUp, 1).piece_of = SharedValue::batch;
       }},
      {"which no part before it writes",
       [&](UnitGraph& graph) { graph.parts.erase(graph.parts.begin() + 4); }},  // "down 1"
      {"bytes of output, which no part of forward writes, or not all of them",
       [&](UnitGraph& graph) { graph.parts.erase(graph.parts.begin() + 6); }},  // "add 1"
      {"writes the output of its unit, which another part writes already",
       [&](UnitGraph& graph) { graph.parts[6].writes = {SharedValue::output}; }},
      {"the whole must be 2 times a part",
       [&](UnitGraph& graph) {
         of(graph, kNormWhole, 0).bytes -= 4;
         of(graph, kNormWhole, 1).begin -= 4;
         of(graph, kNormWhole, 1).bytes += 4;
       }},
  };
  expect_refused(InPieces(2, 2).graph, 2, all);
}

// A part that works on one piece waits for the exchange of that piece, and for no other.
TEST(UnitGraph, APieceWaitsForItsOwnExchange) {
  const InPieces in_pieces(2, 4);
  const StepSpec spec{
      .strategy = {}, .activations = {.units = {in_pieces.graph, in_pieces.graph}}, .order = {}};
  const WholeMesh made(split_chain(2), {.tensor = 2}, spec);
  const Program& program = made.programs[0];
  const HappensBefore order(program);
  const auto exchange = [&](int number) {
    for (InstructionId id = 0; id < program.instructions.count(); ++id)
      if (program.at(id).lane == Lane::exchange && program.at(id).unit == 0 &&
          program.at(id).operand(Role::to).region.value == in_pieces.first.at(kNormWhole) + number)
        return id;
    return -1;
  };
  const auto use = [&](const std::string& name) {
    for (InstructionId id = 0; id < program.instructions.count(); ++id)
      if (program.at(id).op == Opcode::use && program.at(id).unit == 0 &&
          program.units[0].parts[program.at(id).part] == name)
        return id;
    return -1;
  };
  for (int number = 0; number < 4; ++number) {
    const InstructionId up = use("up " + std::to_string(number));
    EXPECT_TRUE(order.ordered(exchange(number), up));
    if (number < 3) {
      EXPECT_FALSE(order.ordered(exchange(number + 1), up));
    }
  }
  EXPECT_TRUE(made.verified().ok()) << made.verified().to_string();
  EXPECT_TRUE(made.proved().ok()) << made.proved().to_string();
}

// Each value has a buffer that begins where a part writes it and ends behind the last that reads it.
TEST(UnitGraph, ValuesLiveFromPartToPart) {
  const Layout layout(chain(2, 100), 1);
  StepSpec spec{.strategy = {}, .activations = small_graphs(2), .order = {}};
  const Program program = build_step(layout, {}, spec);
  const auto at = [&](Pass pass, const std::string& part, UnitId unit) {
    for (InstructionId id = 0; id < program.instructions.count(); ++id) {
      const Instruction& use = program.at(id);
      if (use.op == Opcode::use && use.pass == pass && use.unit == unit &&
          program.units[unit].parts[use.part] == part)
        return id;
    }
    return -1;
  };
  const auto lives = [&](ValueId value) {
    for (const Buffer& buffer : program.buffers)
      if (buffer.role == BufferRole::value && buffer.unit == 0 && buffer.index == value)
        return buffer.lifetimes;
    return std::vector<Lifetime>{};
  };
  using Lives = std::vector<Lifetime>;
  using enum Pass;
  EXPECT_EQ(lives(kNormValue), (Lives{{at(forward, "norm", 0), at(backward, "norm", 0)}}));
  EXPECT_EQ(lives(kUpValue), (Lives{{at(forward, "up", 0), at(backward, "bend", 0)}}));
  // With the gradients that lie over it, up to the last that reads these.
  EXPECT_EQ(lives(kBentValue), (Lives{{at(forward, "bend", 0), at(backward, "up", 0)}}));

  // Under a selective recompute the values end in forward, and begin again.
  spec.strategy.recompute = Recompute::selective;
  const Program again = build_step(layout, {}, spec);
  int found = 0;
  for (const Buffer& buffer : again.buffers) {
    if (buffer.role != BufferRole::value || buffer.unit != 0) continue;
    ++found;
    EXPECT_EQ(buffer.lifetimes.size(), buffer.index == kUpValue ? 1u : 2u) << buffer.name;
  }
  EXPECT_EQ(found, 4);
}

TEST(UnitGraph, EachGradientHasOnePartThatWritesIt) {
  const auto refusal = [](const std::function<void(UnitGraph&)>& spoil) {
    StepSpec spec{.strategy = {}, .activations = small_graphs(1), .order = {}};
    spoil(spec.activations.units[0]);
    try {
      build_step(Layout(chain(1, 100), 1), {}, spec);
    } catch (const UsageError& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  constexpr int kDownParameters = 4, kUpParameters = 7;
  EXPECT_EQ(refusal([](UnitGraph&) {}), "");
  EXPECT_EQ(refusal([](UnitGraph& of) { of.parts[kUpParameters].gradients->clear(); }),
            "the gradient of 'block.0.weight' is written by 0 parts of unit 'block.0'; one must write it, or "
            "several that name it");
  EXPECT_EQ(refusal([](UnitGraph& of) { of.parts[kUpParameters].gradients.reset(); }),
            "the gradient of 'block.0.bias' is written by 2 parts of unit 'block.0'; one must write it, or "
            "several that name it");
  EXPECT_EQ(refusal([](UnitGraph& of) { of.parts[kUpParameters].gradients->push_back(1); }), "");
  EXPECT_EQ(refusal([](UnitGraph& of) { of.parts[kDownParameters].gradients = std::vector<int>{2}; }),
            "part 'down parameters' of unit 'block.0' writes the gradient of parameter 2; the unit has 2");
}

// A layer's parts write the gradients of the parameters that they are for.
TEST(UnitGraph, EachPartWritesItsOwnGradients) {
  const Layout layout(chain(1, 100), 1);
  const StepSpec spec{.strategy = {}, .activations = small_graphs(1), .order = {}};
  const Program program = build_step(layout, {}, spec);
  std::vector<std::string> writers;
  for (const Instruction& use : program.instructions)
    if (use.op == Opcode::use && use.find(Role::gradient) != nullptr)
      writers.push_back(program.units[use.unit].parts[use.part]);
  EXPECT_EQ(writers, (Names{"down parameters", "up parameters"}));
}

}  // namespace
}  // namespace tessera::testing
