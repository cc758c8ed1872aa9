// Arrays that are stacked over units: code that indexes base + unit · stride finds and fills the right
// elements, whatever the stage and the ranks; and what is refused.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numeric>

#include "tessera/arrays.h"
#include "tests/engine/toy.h"

namespace tessera::testing {
namespace {

constexpr int kLayers = 3;
constexpr std::int64_t kWidth = 40;
enum Array : std::size_t { kTable, kMatrix, kBias, kLast, kFixed, kArrays };
constexpr UnitId kHeadUnit = kLayers + 1;

std::vector<ArraySpec> specs() {
  return {{.name = "table", .numel = 7 * kWidth, .also_in = kHeadUnit},
          {.name = "matrix", .numel = kLayers * kWidth * kWidth, .units = kLayers, .first_unit = 1},
          {.numel = kLayers * kWidth, .units = kLayers, .first_unit = 1},
          {.name = "last", .numel = kWidth, .first_unit = kHeadUnit},
          {.name = "fixed", .numel = kLayers * 3, .units = kLayers, .first_unit = 1, .frozen = true}};
}

std::int64_t all_numel() {
  std::int64_t sum = 0;
  for (const ArraySpec& spec : specs()) sum += spec.numel;
  return sum;
}

std::vector<float> initial() {
  std::vector<float> values(static_cast<std::size_t>(all_numel()));
  for (std::size_t k = 0; k < values.size(); ++k) values[k] = std::sin(static_cast<float>(k));
  return values;
}

// The gradient of ½ Σ (p · a)² with a of the element's own and the microbatch's: an element that is mistaken
// for another gets another.
float factor(std::size_t array, std::int64_t element, int rank, int microbatch) {
  return std::cos(
      static_cast<float>(static_cast<std::int64_t>(array) * 977 + element * 3 + rank * 7 + microbatch * 13));
}

struct Tables {
  std::vector<float*> parameters = std::vector<float*>(kArrays), gradients = parameters;
};

// As the trainer's own loop would: from the array's base.
double use_part(const Tables& tables, std::size_t array, std::int64_t first, std::int64_t numel, int rank,
                int microbatch, bool backward) {
  double loss = 0;
  for (std::int64_t k = first; k < first + numel; ++k) {
    const float a = factor(array, k, rank, microbatch), p = tables.parameters[array][k];
    loss += 0.5 * p * a * p * a;
    if (backward) tables.gradients[array][k] += p * a * a;
  }
  return loss;
}

double use_unit(ArrayEngine& model, const Tables& tables, UnitId unit, int rank, int microbatch, Pass pass) {
  const bool backward = pass == Pass::backward;
  model.enter(unit, pass);
  const bool layer = unit >= 1 && unit <= kLayers;
  EXPECT_EQ(tables.parameters[kTable] != nullptr, !layer);
  EXPECT_EQ(tables.parameters[kMatrix] != nullptr, layer);
  EXPECT_EQ(tables.parameters[kLast] != nullptr, unit == kHeadUnit);
  EXPECT_EQ(tables.gradients[kTable] != nullptr, !layer && backward);
  EXPECT_EQ(tables.gradients[kFixed], nullptr);
  if (!layer) {
    double loss = use_part(tables, kTable, 0, 7 * kWidth, rank, microbatch, backward);
    if (unit == kHeadUnit) loss += use_part(tables, kLast, 0, kWidth, rank, microbatch, backward);
    return loss;
  }
  const std::int64_t l = unit - 1;
  double loss = use_part(tables, kMatrix, l * kWidth * kWidth, kWidth * kWidth, rank, microbatch, backward) +
                use_part(tables, kBias, l * kWidth, kWidth, rank, microbatch, backward);
  for (std::int64_t k = l * 3; k < l * 3 + 3; ++k) loss += tables.parameters[kFixed][k];
  return loss;
}

struct Result {
  std::vector<double> losses;
  std::vector<float> values;
};

Result train(const Mesh& mesh, int stage, int microbatches, bool poison = false) {
  Result result;
  run_local(mesh.world(), kBlocking, [&](Communicator world) {
    EngineOptions options;
    options.mesh = mesh;
    options.strategy.placements = Placements::of_stage(stage);
    options.programs = {{.kind = StepKind::train, .microbatches = microbatches}};
    options.optimizer.options = AdamWOptions{.weight_decay = 0.01};
    options.clip.max_norm = 3.0;
    options.debug.poison = poison;
    ArrayEngine model(world, specs(), options);
    Tables tables;
    model.bind(tables.parameters, tables.gradients);
    model.write(initial());
    for (int step = 0; step < 3; ++step) {
      double loss = 0;
      model.engine().begin(StepKind::train, microbatches);
      for (int microbatch = 0; microbatch < microbatches; ++microbatch) {
        for (UnitId unit = 0; unit <= kHeadUnit; ++unit)
          loss += use_unit(model, tables, unit, world.rank(), microbatch, Pass::forward);
        for (UnitId unit = kHeadUnit; unit >= 0; --unit)
          use_unit(model, tables, unit, world.rank(), microbatch, Pass::backward);
      }
      const StepResult of = model.step_mean(0.01, loss);
      EXPECT_TRUE(of.applied);
      EXPECT_EQ(of.weight, mesh.data_ranks() * microbatches);
      EXPECT_EQ(tables.parameters[kTable], nullptr) << "a base outlives its use";
      if (world.rank() == 0) result.losses.push_back(of.loss);
    }
    std::vector<float> values(static_cast<std::size_t>(model.numel()));
    model.read(values);
    if (world.rank() == 0) result.values = values;
  });
  return result;
}

// What one rank computes without Tessera. In float64; the update is AdamW's (optim/adamw.h).
std::vector<double> reference(int ranks, int microbatches) {
  const std::vector<float> start = initial();
  std::vector<double> p(start.begin(), start.end()), mean(p.size()), square(p.size());
  const std::vector<ArraySpec> arrays = specs();
  for (int step = 1; step <= 3; ++step) {
    std::vector<double> g(p.size());
    double norm = 0;
    std::size_t at = 0;
    for (std::size_t array = 0; array < arrays.size(); ++array)
      for (std::int64_t k = 0; k < arrays[array].numel; ++k, ++at) {
        if (arrays[array].frozen) continue;
        for (int rank = 0; rank < ranks; ++rank)
          for (int microbatch = 0; microbatch < microbatches; ++microbatch) {
            const double a = factor(array, k, rank, microbatch);
            g[at] += (array == kTable ? 2 : 1) * p[at] * a * a / (ranks * microbatches);
          }
        norm += g[at] * g[at];
      }
    const double clip = std::min(1.0, 3.0 / std::sqrt(norm));
    at = 0;
    for (const ArraySpec& array : arrays)
      for (std::int64_t k = 0; k < array.numel; ++k, ++at) {
        if (array.frozen) continue;
        const double gradient = g[at] * clip;
        mean[at] = 0.9 * mean[at] + 0.1 * gradient;
        square[at] = 0.999 * square[at] + 0.001 * gradient * gradient;
        p[at] -= 0.01 * (mean[at] / (1 - std::pow(0.9, step)) /
                             (std::sqrt(square[at] / (1 - std::pow(0.999, step))) + 1e-8) +
                         0.01 * p[at]);
      }
  }
  return p;
}

TEST(Arrays, EveryElementIsTrainedAtItsPlace) {
  for (const int ranks : {1, 2, 3}) {
    const std::vector<double> expected = reference(ranks, 2);
    const Result first = train({.shard = ranks}, 0, 2);
    for (std::size_t k = 0; k < expected.size(); ++k)
      ASSERT_NEAR(first.values[k], expected[k], 2e-5) << "element " << k << " on " << ranks << " ranks";
    for (const int stage : {1, 2, 3})
      for (const bool poison : {false, true}) {
        const Result other = train({.shard = ranks}, stage, 2, poison);
        EXPECT_EQ(other.values, first.values) << "stage " << stage;
        EXPECT_EQ(other.losses, first.losses) << "stage " << stage;
      }
  }
}

TEST(Arrays, UnitsHaveThePartsInTheOrderOfTheArrays) {
  const std::vector<UnitSpec> units = units_of(specs());
  ASSERT_EQ(units.size(), kLayers + 2u);
  EXPECT_EQ(units[2].name, "unit2");
  ASSERT_EQ(units[2].parameters.size(), 3u);
  EXPECT_EQ(units[2].parameters[0].name, "matrix.1");
  EXPECT_EQ(units[2].parameters[1].name, "array2.1");
  EXPECT_FALSE(units[2].parameters[2].trainable);
  ASSERT_EQ(units[kHeadUnit].parameters.size(), 2u);
  EXPECT_EQ(units[kHeadUnit].parameters[0].name, "table.tied");
  EXPECT_EQ(units[kHeadUnit].parameters[0].tied_to, "table");
}

TEST(Arrays, BasesLieInTheAddressSpaceOfTheArena) {
  run_local(1, kBlocking, [&](Communicator world) {
    ArrayEngine model(world, specs());
    EXPECT_EQ(model.engine().address_space_before(), (kLayers - 1) * kWidth * kWidth * 4);
    EXPECT_EQ(model.numel(), all_numel());
    EXPECT_EQ(model.arrays()[kBias].name, "array2");
  });
}

TEST(Arrays, EvaluateWithoutGradientsOrALoss) {
  run_local(2, kBlocking, [&](Communicator world) {
    EngineOptions options;
    options.mesh.shard = 2;
    options.strategy.placements = Placements::of_stage(3);
    options.programs.push_back({.kind = StepKind::evaluate});
    ArrayEngine model(world, specs(), options);
    Tables tables;
    model.bind(tables.parameters, std::span<float*>());
    model.write(initial());
    for (int round = 0; round < 2; ++round) {
      model.engine().begin(StepKind::evaluate);
      for (UnitId unit = 0; unit <= kHeadUnit; ++unit) model.enter(unit, Pass::forward);
      model.end_evaluation();
    }
    EXPECT_EQ(model.engine().steps_applied(), 0);
    std::vector<float> values(static_cast<std::size_t>(model.numel()));
    model.read(values);
    EXPECT_EQ(values, initial());
  });
}

TEST(Arrays, OfOtherTypesHaveTablesOfVoid) {
  run_local(1, kBlocking, [&](Communicator world) {
    const std::vector<ArraySpec> mixed = {{.name = "a", .numel = 6, .units = 2, .dtype = DType::bf16},
                                          {.name = "b", .numel = 4, .units = 2}};
    ArrayEngine model(world, mixed);
    std::vector<float*> floats(2);
    try {
      model.bind(floats, {});
      ADD_FAILURE() << "bound";
    } catch (const UsageError& error) {
      EXPECT_NE(std::string(error.what()).find("array 'a' is bf16, and the tables are of float*"),
                std::string::npos)
          << error.what();
    }
    std::vector<void*> any(2), gradients(2);
    model.bind(any, gradients);
    std::vector<float> values(10);
    std::iota(values.begin(), values.end(), 1.0f);
    model.write(values);
    model.engine().begin(StepKind::train);
    model.enter(0, Pass::forward);
    model.enter(1, Pass::forward);
    EXPECT_EQ(static_cast<std::uint16_t*>(any[0])[3], 0x4080);  // 4 in bf16: the second part begins there
    EXPECT_EQ(static_cast<float*>(any[1])[2], 9.0f);
    model.abandon();
  });
}

void expect_refused(const std::vector<ArraySpec>& arrays, const std::string& words) {
  try {
    units_of(arrays);
    ADD_FAILURE() << "took what should say: " << words;
  } catch (const UsageError& error) {
    EXPECT_NE(std::string(error.what()).find(words), std::string::npos) << error.what();
  }
}

TEST(Arrays, ThatCannotBeAreRefusedByName) {
  constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();
  expect_refused({}, "arrays is empty");
  expect_refused({{.name = "a", .numel = 0}}, "array 'a': numel is 0");
  expect_refused({{.numel = 8}, {.numel = -8}}, "array 'array1': numel is -8");
  expect_refused({{.name = "a", .numel = 8, .units = -1}}, "units is -1");
  expect_refused({{.name = "a", .numel = kMost, .units = static_cast<int>(kMost)}}, "units is 2147483647");
  expect_refused({{.name = "a", .numel = 8, .units = 3}}, "numel is 8 and units 3");
  expect_refused({{.name = "a", .numel = 8, .first_unit = -2}}, "first_unit is -2");
  expect_refused({{.name = "a", .numel = 8, .units = 2, .also_in = 3}}, "also_in is 3 and units 2");
  expect_refused({{.name = "a", .numel = 8, .first_unit = 2, .also_in = 2}}, "must be a later one");
  expect_refused({{.name = "a", .numel = 8}, {.name = "b", .numel = 8, .first_unit = 2}},
                 "no array has a part in unit 1, and the last unit is 2");
}

TEST(Arrays, ThatFindNoAddressSpaceSaySo) {
  run_local(1, kBlocking, [&](Communicator world) {
    EngineOptions options;
    options.address_space_before = std::int64_t{1} << 50;  // more than a processor has
    const std::vector<ArraySpec> stacked = {{.name = "a", .numel = 1 << 20, .units = 2}};
    ArrayEngine model(world, stacked, options);
    std::vector<float*> table(1);
    try {
      model.bind(table, {});
      ADD_FAILURE() << "bound";
    } catch (const EnvironmentError& error) {
      EXPECT_NE(std::string(error.what()).find("ulimit -v"), std::string::npos) << error.what();
    }
  });
}

TEST(Views, AreOfTheirParametersType) {
  run_local(1, kBlocking, [&](Communicator world) {
    const std::vector<UnitSpec> units = {{.name = "u",
                                          .parameters = {{.name = "half", .shape = {3}, .dtype = DType::bf16},
                                                         {.name = "full", .shape = {2}}}}};
    Engine engine(world, units, {});
    engine.begin(StepKind::train);
    UnitLease lease = engine.use(0, Pass::forward);
    EXPECT_EQ(lease.parameter(1).as<float>().size(), 2u);
    EXPECT_EQ(lease.parameter(0).as<std::uint16_t>().size(), 3u);
    const auto refused = [](const auto& call, const std::string& words) {
      try {
        call();
        ADD_FAILURE() << "took what should say: " << words;
      } catch (const UsageError& error) {
        EXPECT_NE(std::string(error.what()).find(words), std::string::npos) << error.what();
      }
    };
    refused([&] { (void)lease.parameter(0).as<float>(); }, "'half' is bf16 and was asked for as float");
    refused([&] { (void)lease.parameter(1).as<std::uint16_t>(); },
            "'full' is fp32 and was asked for as a type of 2");
    lease.end();
    engine.abandon();
  });
}

}  // namespace
}  // namespace tessera::testing
