// Weights go between files and parameters that are cut over tensor ranks: whole tensors in the file, each
// rank's share in the engine.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <fstream>

#include "tessera/safetensors.h"
#include "tests/checkpoint/counting_reads.h"
#include "tests/engine/cut_toy.h"
#include "tests/trainer/temporary_folder.h"

namespace tessera::testing {
namespace {

namespace fs = std::filesystem;

// Matrices that lie in the file as in the model, and transposed; cut along either dim, in segments, too; one
// parameter of two tensors, as a joined projection is of three.
std::vector<UnitSpec> stored_units(DType type) {
  std::vector<UnitSpec> units = cut_units(type);
  units[2].parameters = {
      {.name = "turned.rows", .shape = {24, 10}, .dtype = type, .cut = {.dim = 0, .segments = {16, 4, 4}}},
      {.name = "turned.columns", .shape = {10, 24}, .dtype = type, .cut = {.dim = 1}},
      {.name = "turned.parts", .shape = {7, 16}, .dtype = type, .cut = {.dim = 1, .segments = {8, 4, 4}}},
      {.name = "turned.copied", .shape = {5, 9}, .dtype = type},
      {.name = "turned.joined", .shape = {24, 5}, .dtype = type, .cut = {.dim = 0, .segments = {8, 16}}},
      {.name = "turned.stack", .shape = {3, 4, 6}, .dtype = type, .cut = {.dim = 1}}};
  return units;
}

WeightMap map_of(const std::vector<UnitSpec>& units) {
  WeightMap map;
  for (const UnitSpec& unit : units)
    for (const ParameterSpec& p : unit.parameters) {
      if (!p.tied_to.empty()) continue;
      const auto add = [&](const std::string& end, Shape shape, std::int64_t begin = 0,
                           bool transposed = false) {
        map.tensors.push_back({p.name + end, std::move(shape), p.name, begin, transposed});
      };
      if (p.name == "turned.joined") {
        add(".a", {5, 8}, 0, true);
        add(".b", {5, 16}, 40, true);
      } else if (p.name == "turned.stack") {
        for (int k = 0; k < 3; ++k) add(fmt::format(".{}", k), {4, 6}, 24 * k);
      } else if (p.name == "block.1.weight") {  // whose rows of 31 are those of none of its tensors
        add(".t", {31, 18}, 0, true);
      } else if (p.name.starts_with("turned.")) {
        add("", {p.shape[1], p.shape[0]}, 0, true);
      } else {
        add("", p.shape);
      }
    }
  return map;
}

struct Weights {
  Mesh mesh = {};
  int stage = 0;
  DType type = DType::fp32;
  std::vector<UnitSpec> units = stored_units(type);

  std::vector<float> on_ranks(const std::function<void(Communicator, Engine&, const WeightMap&)>& act) const {
    std::vector<float> values;
    SCOPED_TRACE(fmt::format("{}, stage {}", to_string(mesh), stage));
    run_local(mesh.world(), {.deadline = std::chrono::seconds(20), .waiting = Waiting::block},
              [&](Communicator world) {
                Engine engine(world, units, cut_options(mesh, stage));
                act(world, engine, map_of(units));
                std::vector<float> own = read_whole(engine);
                if (world.rank() == 0) values = std::move(own);
              });
    return values;
  }
};

std::string text_of(const fs::path& path) {
  std::ifstream stream(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>()};
}

TEST(CutSafetensors, AnyMeshGivesTheSameFileAndTakesTheSameWeights) {
  const Mesh meshes[] = {
      {}, {.tensor = 2}, {.tensor = 4}, {.shard = 2, .tensor = 2}, {.pipeline = 2, .tensor = 2}};
  for (const DType type : {DType::fp32, DType::bf16}) {
    const TemporaryFolder folder;
    std::string first;
    std::vector<float> expected;
    for (const Mesh& mesh : meshes)
      for (const auto& [stage, blocks] : {std::pair(0, 1), {3, 1}, {0, 4}, {3, 4}}) {
        const fs::path path = folder.file("out.safetensors");
        const Weights weights{mesh, stage, type, in_blocks(stored_units(type), blocks)};
        const std::vector<float> values =
            weights.on_ranks([&](Communicator world, Engine& engine, const WeightMap& map) {
              engine.initialize(toy_fill());
              export_safetensors(path, world, engine, map);
            });
        if (first.empty()) first = text_of(path), expected = values;
        EXPECT_EQ(values, expected);
        EXPECT_TRUE(text_of(path) == first) << to_string(mesh) << ", stage " << stage << ", " << blocks;
        EXPECT_EQ(weights.on_ranks([&](Communicator world, Engine& engine, const WeightMap& map) {
          import_safetensors(path, world, engine, map);
        }),
                  expected)
            << to_string(mesh) << ", stage " << stage << ", " << blocks << " blocks";
      }
  }
}

// States are whole on every rank, or are shards that end with rows. What comes on top is the header, and how
// each tensor begins.
TEST(CutSafetensors, EachRankReadsItsBytesOnly) {
  const CountingReads counting;
  std::vector<UnitSpec> rows = {
      {.name = "rows",
       .parameters = {
           {.name = "turned.rows", .shape = {512, 64}, .cut = {.dim = 0, .segments = {256, 128, 128}}}}}};
  std::vector<UnitSpec> columns = {
      {.name = "columns", .parameters = {{.name = "turned.columns", .shape = {64, 512}, .cut = {.dim = 1}}}}};
  std::vector<UnitSpec> plain = {
      {.name = "plain", .parameters = {{.name = "plain", .shape = {64, 512}, .cut = {.dim = 1}}}}};
  struct Case {
    Mesh mesh;
    int stage;
    std::vector<UnitSpec> units;
  };
  for (const Case& of :
       {Case{{.tensor = 2}, 0, stored_units(DType::fp32)}, Case{{.tensor = 4}, 0, stored_units(DType::fp32)},
        Case{{.shard = 2, .tensor = 2}, 3, rows}, Case{{.shard = 2, .tensor = 2}, 3, columns},
        Case{{.shard = 4, .tensor = 2}, 3, plain}}) {
    const TemporaryFolder folder;
    const fs::path path = folder.file("out.safetensors");
    Weights{.mesh = {}, .units = of.units}.on_ranks(
        [&](Communicator world, Engine& engine, const WeightMap& map) {
          engine.initialize(toy_fill());
          export_safetensors(path, world, engine, map);
        });
    std::uint64_t header = 0;
    std::memcpy(&header, text_of(path).data(), sizeof header);
    Weights{of.mesh, of.stage, DType::fp32, of.units}.on_ranks(
        [&](Communicator world, Engine& engine, const WeightMap& map) {
          bytes_read = 0;
          import_safetensors(path, world, engine, map, {.allow_nonfinite = true});
          std::int64_t expected = 8 + static_cast<std::int64_t>(header);
          for (const StoredTensor& tensor : map.tensors)
            expected += std::min<std::int64_t>(64, 4 * numel_of(tensor.shape));
          const Coordinates place = of.mesh.coordinates(engine.rank());
          const Spread spread = spreads_of(engine.options().strategy, of.mesh).parameters;
          for (FlatId flat = 0; flat < engine.layout().flats().count(); ++flat) {
            const auto [begin, end] = range_of(engine.layout().flat(flat), spread, place);
            for (const Piece& piece : engine.layout().global_pieces(flat, begin, end, place[Axis::tensor]))
              expected += 4 * piece.numel;
          }
          EXPECT_EQ(bytes_read, expected) << of.units[0].name << ", " << to_string(of.mesh);
        });
  }
}

// A rank's part is more than a stage takes at once, and than initialize() asks for at once.
TEST(CutSafetensors, LargeTensors) {
  constexpr std::int64_t kRows = 1100, kColumns = 8000;
  const std::vector<UnitSpec> units = {
      {.name = "large",
       .parameters = {{.name = "turned.columns", .shape = {kRows, kColumns}, .cut = {.dim = 1}}}}};
  const auto value = [](std::int64_t at) { return static_cast<float>(at * 7 % 65521) / 64.0f; };
  const TemporaryFolder folder;
  const fs::path path = folder.file("out.safetensors");
  const auto on_ranks = [&](const Mesh& mesh, const auto& act) {
    run_local(mesh.world(), {.deadline = std::chrono::seconds(60), .waiting = Waiting::block},
              [&](Communicator world) {
                Engine engine(world, units, cut_options(mesh, 3));
                act(world, engine);
                std::vector<float> values(kRows * kColumns);
                engine.read(0, StateKind::master, 0, values);
                for (std::int64_t at = 0; at < kRows * kColumns; ++at)
                  ASSERT_EQ(values[static_cast<std::size_t>(at)], value(at)) << to_string(mesh) << " " << at;
              });
  };
  on_ranks({.tensor = 2}, [&](Communicator world, Engine& engine) {
    engine.initialize([&](ParameterId, std::int64_t begin, std::span<float> values) {
      for (std::size_t k = 0; k < values.size(); ++k) values[k] = value(begin + static_cast<std::int64_t>(k));
    });
    export_safetensors(path, world, engine, map_of(units));
  });
  for (const Mesh& mesh : {Mesh{}, Mesh{.tensor = 2}, Mesh{.shard = 3, .tensor = 2}})
    on_ranks(mesh, [&](Communicator world, Engine& engine) {
      import_safetensors(path, world, engine, map_of(units));
    });
}

}  // namespace
}  // namespace tessera::testing
