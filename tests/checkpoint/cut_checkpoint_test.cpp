// Checkpoints of parameters that are cut over tensor ranks: saved on one mesh, continued on any other.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <xxhash.h>

#include <cstring>
#include <fstream>
#include <set>

#include "src/checkpoint/header.h"
#include "tests/checkpoint/counting_reads.h"
#include "tests/checkpoint/edit_header.h"
#include "tests/checkpoint/toy_run.h"
#include "tests/engine/cut_toy.h"

namespace tessera::testing {
namespace {

namespace fs = std::filesystem;

struct CutRun {
  Mesh mesh = {};
  int stage = 3;
  DType type = DType::bf16;
  bool over_replicas = false;  // states
  Space states = Space::device;
  int blocks = 1;
  std::vector<UnitSpec> units = cut_units(type);

  template <class Body>
  void run(const Body& body) const {
    SCOPED_TRACE(text());
    run_local(mesh.world(), {.deadline = std::chrono::seconds(20), .waiting = Waiting::block},
              [&](Communicator ranks) {
                EngineOptions options = cut_options(mesh, stage);
                options.strategy.state_over_replicas = over_replicas;
                options.strategy.offload.states = states;
                options.disk_directory = fs::temp_directory_path();
                Engine engine(ranks, units, options);
                engine.initialize(toy_fill());
                body(ranks, engine);
              });
  }
  std::string text() const { return fmt::format("{}, stage {}, {} blocks", to_string(mesh), stage, blocks); }
  // read_whole() of every rank, which must be equal; after `act` on each.
  std::vector<float> states_after(const std::function<void(Communicator, Engine&)>& act) const {
    std::vector<std::vector<float>> all(static_cast<std::size_t>(mesh.world()));
    run([&](Communicator ranks, Engine& engine) {
      act(ranks, engine);
      all[static_cast<std::size_t>(ranks.rank())] = read_whole(engine);
    });
    for (const std::vector<float>& one : all) EXPECT_EQ(one, all[0]) << text();
    return all[0];
  }
};

fs::path file_in(const TemporaryFolder& folder, int rank) {
  return fs::path(folder.file("run")) / "step-00000003" / fmt::format("rank-{:05}.tessera", rank);
}

void save(const CutRun& run, const TemporaryFolder& folder) {
  run.run([&](Communicator ranks, Engine& engine) {
    for (int step = 0; step < 3; ++step) cut_step(engine, {.step = step});
    save_checkpoint(folder.file("run"), ranks, engine, state_at(3));
  });
}

// What it writes into all states.
std::vector<float> save_everything(const CutRun& run, const TemporaryFolder& folder) {
  return run.states_after([&](Communicator ranks, Engine& engine) {
    write_everything(engine, 1);
    save_checkpoint(folder.file("run"), ranks, engine, state_at(3));
  });
}

std::string load_error(const CutRun& run, const TemporaryFolder& folder) {
  IdVector<std::string> messages(run.mesh.world());
  run.run([&](Communicator ranks, Engine& engine) {
    try {
      load_checkpoint(folder.file("run"), ranks, engine);
    } catch (const Error& error) {
      messages[ranks.rank()] = error.what();
    }
  });
  for (const std::string& message : messages) EXPECT_EQ(message, messages[0]);
  return messages[0];
}

// Steps with the samples of the first data rank alone, so that a run on any mesh continues alike.
void any_steps(Engine& engine, int begin, int end) {
  const Coordinates place = engine.options().mesh.coordinates(engine.rank());
  const bool first = engine.options().mesh.data_rank(engine.rank()) == 0;
  for (int step = begin; step < end; ++step) {
    cut_uses(engine, {.step = step,
                      .gradient = [&](const GradientAt& at) { return first ? toy_gradient(at) : 0.0f; }});
    (void)engine.step({.learning_rate = 0.01, .weight = first && place[Axis::pipeline] == 0 ? 2.0 : 0.0});
  }
}

class CutReshard : public ::testing::TestWithParam<DType> {};

TEST_P(CutReshard, AnyMeshAndStageReadsWhatAnyOtherWrote) {
  std::vector<CutRun> runs = {{.mesh = {}, .stage = 0},
                              {.mesh = {.shard = 3}, .stage = 3},
                              {.mesh = {.tensor = 2}, .stage = 0},
                              {.mesh = {.tensor = 4}, .stage = 3},
                              {.mesh = {.shard = 2, .tensor = 2}, .stage = 1},
                              {.mesh = {.shard = 3, .tensor = 2}, .stage = 3},
                              {.mesh = {.pipeline = 2, .tensor = 2}, .stage = 3},
                              {.mesh = {.replicate = 2, .tensor = 2}, .stage = 1, .over_replicas = true},
                              {.mesh = {.shard = 2, .tensor = 4}, .stage = 2, .states = Space::disk},
                              {.mesh = {}, .stage = 0, .blocks = 4},
                              {.mesh = {.shard = 3, .tensor = 2}, .stage = 3, .blocks = 4}};
  for (CutRun& run : runs) run.type = GetParam(), run.units = in_blocks(cut_units(GetParam()), run.blocks);
  for (const CutRun& saves : runs) {
    const TemporaryFolder folder;
    const std::vector<float> expected = save_everything(saves, folder);
    EXPECT_TRUE(inspect_checkpoint(folder.file("run"), true).problems.empty());
    for (const CutRun& loads : runs) {
      const std::vector<float> found = loads.states_after([&](Communicator ranks, Engine& engine) {
        write_everything(engine, 2);  // all of it must be replaced
        EXPECT_EQ(load_checkpoint(folder.file("run"), ranks, engine).step, 3);
      });
      EXPECT_EQ(found, expected) << "saved by " << saves.text() << ", loaded by " << loads.text();
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Types, CutReshard, ::testing::Values(DType::fp32, DType::bf16));

// Padding of cuts included, which is not where it was: else its elements would take part in updates.
TEST(CutCheckpoint, ContinuesBitwiseOnAnotherMesh) {
  const Mesh meshes[] = {
      {}, {.shard = 2}, {.tensor = 2}, {.tensor = 4}, {.pipeline = 2, .shard = 2, .tensor = 2}};
  std::vector<float> expected;
  for (const Mesh& saves : meshes) {
    const TemporaryFolder folder;
    const std::vector<float> through =
        CutRun{.mesh = saves}.states_after([&](Communicator ranks, Engine& engine) {
          any_steps(engine, 0, 2);
          save_checkpoint(folder.file("run"), ranks, engine, state_at(2));
          any_steps(engine, 2, 4);
        });
    if (expected.empty()) expected = through;
    EXPECT_EQ(through, expected) << to_string(saves);
    for (const Mesh& loads : meshes)
      for (const int stage : {0, 3})
        EXPECT_EQ(
            (CutRun{.mesh = loads, .stage = stage}.states_after([&](Communicator ranks, Engine& engine) {
              any_steps(engine, 0, 1);  // anything: all of it must be replaced
              load_checkpoint(folder.file("run"), ranks, engine);
              any_steps(engine, 2, 4);
            })),
            expected)
            << "saved by " << to_string(saves) << ", continued by " << to_string(loads);
  }
}

// A build whose modules cut other dims, or none, or in another order.
TEST(CutCheckpoint, IsReadByOtherCuts) {
  std::vector<UnitSpec> other = cut_units(DType::bf16), none = other;
  for (UnitSpec& unit : other)
    for (ParameterSpec& p : unit.parameters) {
      if (p.name == "block.0.qkv") p.cut = {.dim = 1};
      if (p.name == "block.0.out") p.cut = {.dim = 0};
      if (p.name == "block.0.norm") p.cut = {.dim = 0};
      if (p.name == "block.1.weight") p.cut = {.dim = 0};
    }
  for (UnitSpec& unit : none)
    for (ParameterSpec& p : unit.parameters) p.cut = {};
  const Mesh mesh{.shard = 2, .tensor = 2};
  const CutRun runs[] = {{.mesh = mesh}, {.mesh = mesh, .units = other}, {.mesh = mesh, .units = none}};
  for (const CutRun& saves : runs) {
    const TemporaryFolder folder;
    const std::vector<float> expected = save_everything(saves, folder);
    for (const CutRun& loads : runs)
      EXPECT_EQ(loads.states_after([&](Communicator ranks, Engine& engine) {
        load_checkpoint(folder.file("run"), ranks, engine);
      }),
                expected);
  }
}

TEST(CutCheckpoint, EachElementIsStoredOnce) {
  for (const int stage : {0, 3}) {
    const CutRun run{.mesh = {.shard = 2, .tensor = 2}, .stage = stage};
    const TemporaryFolder folder;
    save(run, folder);
    std::int64_t stored = 0, expected = 0;
    for (int rank = 0; rank < 4; ++rank) {
      if (!fs::exists(file_in(folder, rank))) continue;
      const checkpoint::FileReader reader(file_in(folder, rank));
      for (const checkpoint::StoredBuffer& buffer : checkpoint::decode(reader).buffers)
        stored += buffer.bytes;
    }
    const Layout layout(run.units, 2, 1, 2);
    for (const Flat& flat : layout.flats()) {
      const std::int64_t states = !flat.trainable ? 0 : flat.dtype == DType::fp32 ? 8 : 12;
      expected +=
          (flat.over == TensorShare::cut ? 2 : 1) * flat.padded_numel * (bytes_of(flat.dtype) + states);
    }
    EXPECT_EQ(stored, expected);
    // Each tensor rank has one file of states that data ranks have copies of.
    EXPECT_EQ(inspect_checkpoint(folder.file("run"), true).files.size(), stage == 0 ? 2u : 4u);
  }
}

// Large enough for many blocks; cut along rows in segments, and along columns.
std::vector<UnitSpec> large_units() {
  return {
      {.name = "large",
       .parameters = {{.name = "rows", .shape = {2048, 512}, .cut = {.dim = 0, .segments = {1024, 512, 512}}},
                      {.name = "columns", .shape = {512, 2048}, .cut = {.dim = 1}},
                      {.name = "copied", .shape = {512, 512}}}}};
}

// What this rank must read: headers, and once each the blocks of a MiB that have an element of it. It looks
// at one element in 64, since all that is cut is cut between multiples of 64.
std::int64_t expected_bytes(const Engine& engine, const TemporaryFolder& folder, const Mesh& saved) {
  const Layout &layout = engine.layout(), stored(layout.units(), saved.shard, saved.replicate, saved.tensor);
  const Coordinates own = engine.options().mesh.coordinates(engine.rank());
  std::set<int> files = {0};
  std::set<std::tuple<int, FlatId, std::int64_t>> blocks;
  for (FlatId flat = 0; flat < layout.flats().count(); ++flat) {
    const auto [begin, end] = range_of(layout.flat(flat), kShard, own);
    for (std::int64_t at = begin; at < end; at += 64) {
      const Element element = layout.locate(flat, at, own[Axis::tensor]);
      if (element.parameter < 0) continue;
      const FlatId there = stored.place(element.parameter).flat;
      Coordinates owner{};
      owner[Axis::shard] = stored.shard_of(element);
      owner[Axis::tensor] = stored.tensor_rank_of(element);
      const std::int64_t place = stored.offset_of(element) % stored.flat(there).shard_numel;
      files.insert(saved.rank(owner));
      blocks.insert({saved.rank(owner), there, place * 4 / checkpoint::kChecksumBytes});
    }
  }
  std::int64_t bytes = 0;
  for (const int file : files) {
    const checkpoint::FileReader reader(file_in(folder, file));
    std::uint64_t header_bytes = 0;
    reader.read(8, std::as_writable_bytes(std::span(&header_bytes, 1)));
    bytes += 32 + static_cast<std::int64_t>(header_bytes);
  }
  for (const auto& [file, flat, block] : blocks) {
    const std::int64_t all = stored.flat(flat).shard_numel * 4;
    bytes += 3 * std::min(checkpoint::kChecksumBytes, all - block * checkpoint::kChecksumBytes);
  }
  return bytes;
}

TEST(CutCheckpoint, EachRankReadsWhatItHoldsOnly) {
  const CountingReads counting;
  for (const Mesh& saved : {Mesh{.shard = 2, .tensor = 2}, Mesh{.tensor = 4}}) {
    const CutRun saves{.mesh = saved, .type = DType::fp32, .units = large_units()};
    const TemporaryFolder folder;
    saves.run([&](Communicator ranks, Engine& engine) {
      save_checkpoint(folder.file("run"), ranks, engine, state_at(3));
    });
    for (const Mesh& mesh : {Mesh{}, Mesh{.shard = 4}, Mesh{.tensor = 2}, Mesh{.shard = 2, .tensor = 2},
                             Mesh{.tensor = 4}, Mesh{.shard = 2, .tensor = 4}})
      CutRun{.mesh = mesh, .type = DType::fp32, .units = large_units()}.run(
          [&](Communicator ranks, Engine& engine) {
            bytes_read = 0;
            load_checkpoint(file_in(folder, 0).parent_path(), ranks, engine);
            const std::int64_t found = bytes_read;
            EXPECT_EQ(found, expected_bytes(engine, folder, saved))
                << "saved by " << to_string(saved) << ", loaded by " << to_string(mesh);
          });
  }
}

TEST(CutCheckpoint, RanksThatHoldRowsReadAFewBlocksOfEachFile) {
  const CountingReads counting;
  std::vector<UnitSpec> units = {
      {.name = "table", .parameters = {{.name = "table", .shape = {16384, 512}, .cut = {.dim = 0}}}}};
  const TemporaryFolder folder;
  CutRun{.mesh = {.tensor = 2}, .type = DType::fp32, .units = units}.run(
      [&](Communicator ranks, Engine& engine) {
        save_checkpoint(folder.file("run"), ranks, engine, state_at(3));
      });
  CutRun{.mesh = {.tensor = 8}, .type = DType::fp32, .units = units}.run(
      [&](Communicator ranks, Engine& engine) {
        bytes_read = 0;
        load_checkpoint(file_in(folder, 0).parent_path(), ranks, engine);
        const std::int64_t held = 3 * 16384 / 8 * 512 * 4;
        EXPECT_GE(bytes_read, held);
        EXPECT_LE(bytes_read, held + 2 * 16384) << "headers of two files";
      });
}

// Blocks lie in another order than the elements of the parameters: files are read out of order, with or
// without checksums of parts. Each byte of them comes a few times: for each block of the reader's, and to be
// checked.
TEST(CutCheckpoint, BlocksOfManyMiBAreReadInAnyOrder) {
  const CountingReads counting;
  const auto run_of = [](int tensor, int blocks) {
    return CutRun{.mesh = {.tensor = tensor},
                  .stage = 0,
                  .type = DType::fp32,
                  .blocks = blocks,
                  .units = in_blocks(large_units(), blocks)};
  };
  const CutRun runs[] = {run_of(1, 1), run_of(2, 1), run_of(1, 4), run_of(2, 4)};
  for (const CutRun& saves : runs) {
    const TemporaryFolder folder;
    const std::vector<float> expected = save_everything(saves, folder);
    for (const CutRun& loads : runs)
      EXPECT_TRUE(loads.states_after([&](Communicator ranks, Engine& engine) {
        bytes_read = 0;
        load_checkpoint(folder.file("run"), ranks, engine);
        const std::int64_t all = 3 * (2048 * 512 + 512 * 2048 + 512 * 512) * 4;
        const int own = std::max(loads.blocks / loads.mesh.tensor, 1);
        EXPECT_LE(bytes_read, (own + 2) * (all + (1 << 20))) << saves.text() << ", " << loads.text();
      }) == expected)
          << "saved by " << saves.text() << ", loaded by " << loads.text();
  }
}

// The hashes are of all bytes of both files, as they were before parameters could be cut.
TEST(CutCheckpoint, OfOneTensorRankHasTheBytesThatItAlwaysHad) {
  const auto hash_of = [](const fs::path& file) {
    std::ifstream stream(file, std::ios::binary);
    const std::string bytes((std::istreambuf_iterator<char>(stream)), std::istreambuf_iterator<char>());
    return XXH3_64bits(bytes.data(), bytes.size());
  };
  for (const DType type : {DType::fp32, DType::bf16}) {
    const ToyRun run{.type = type};
    const TemporaryFolder folder;
    run.run([&](Communicator world, Engine& engine) {
      RunState state = state_at(3);
      state.numerics = "any";
      save_checkpoint(folder.file("run"), world, engine, state);
    });
    const bool wide = type == DType::fp32;
    EXPECT_EQ(hash_of(file_in(folder, 0)), wide ? 4887423024266165149u : 12123658129239309707u);
    EXPECT_EQ(hash_of(file_in(folder, 1)), wide ? 8741191811934705384u : 12039133123398202238u);
  }
}

class CutDamage : public ::testing::Test {
 protected:
  void SetUp() override { save(run_, folder_); }
  CutRun run_{.mesh = {.shard = 2, .tensor = 2}};
  TemporaryFolder folder_;
};

TEST_F(CutDamage, IsNamedOnAnyMesh) {
  std::vector<std::int64_t> bytes;
  for (int rank = 0; rank < 4; ++rank)
    bytes.push_back(static_cast<std::int64_t>(fs::file_size(file_in(folder_, rank))));
  for (const Mesh& mesh : {Mesh{}, Mesh{.shard = 2, .tensor = 2}, Mesh{.tensor = 4}, Mesh{.shard = 3}}) {
    const CutRun loads{.mesh = mesh};
    EXPECT_EQ(load_error(loads, folder_), "");
    for (int rank = 0; rank < 4; ++rank) {
      const fs::path file = file_in(folder_, rank);
      const checkpoint::Header header = checkpoint::decode(checkpoint::FileReader(file));
      const checkpoint::StoredBuffer& buffer = *std::ranges::find(
          header.buffers.rbegin(), header.buffers.rend(), "block.1", &checkpoint::StoredBuffer::unit);
      flip_byte(file, buffer.offset);
      expect_mentions(load_error(loads, folder_),
                      {fmt::format("rank-0000{}.tessera", rank),
                       "is damaged: checksum of the moment2 of unit block.1", "expected"});
      EXPECT_THROW(inspect_checkpoint(folder_.file("run"), true), EnvironmentError);
      flip_byte(file, buffer.offset);
    }
    fs::rename(file_in(folder_, 3), folder_.file("kept"));
    expect_mentions(load_error(loads, folder_), {"rank-00003.tessera", "No such file"});
    fs::rename(folder_.file("kept"), file_in(folder_, 3));
  }
}

// Headers that somebody made, of which the checksum is right.
TEST_F(CutDamage, HeadersThatLie) {
  const auto tells = [&](int rank, const std::string& from, const std::string& to,
                         const std::vector<std::string>& words) {
    const fs::path kept = folder_.file("kept");
    fs::copy_file(file_in(folder_, rank), kept, fs::copy_options::overwrite_existing);
    edit_header(file_in(folder_, rank), [&](std::string& header) { replace_in(header, from, to); });
    expect_mentions(load_error(run_, folder_), words);
    fs::copy_file(kept, file_in(folder_, rank), fs::copy_options::overwrite_existing);
  };
  const std::string segments = "\"segments\":[16,4,4]";
  tells(0, segments, "\"segments\":[16,4,5]", {"is damaged", "block.0.qkv", "[16, 4, 5]", "dim 0, 24"});
  tells(0, segments, "\"segments\":[16,4]", {"is damaged", "block.0.qkv", "[16, 4]"});
  tells(0, segments, "\"segments\":[12,8,4]", {"rank-00000.tessera", "the layout is"});
  tells(0, "\"dim\":1,\"padded\":true", "\"dim\":9,\"padded\":true", {"is damaged", "cut.dim is 9"});
  tells(0, "\"dim\":1,\"padded\":true", "\"dim\":1,\"padded\":\"no\"", {"rank-00000.tessera", "is damaged"});
  tells(0, "\"tensor\":2", "\"tensor\":0", {"rank-00000.tessera", "mesh.tensor is 0"});
  tells(0, "\"tensor\":2", "\"tensor\":1", {"rank-00000.tessera"});
  tells(0, "\"version\":3", "\"version\":5", {"version 5; this build reads 1 to 4"});
  tells(1, "\"shard\":2,\"tensor\":2", "\"shard\":1,\"tensor\":4", {"rank-00001.tessera", "of another run"});
  const fs::path file = file_in(folder_, 2), kept = folder_.file("kept");
  fs::copy_file(file, kept, fs::copy_options::overwrite_existing);
  for (const bool longer : {false, true}) {
    edit_header(file, [&](std::string& header) {
      const std::size_t at = header.find("\"blocks\":\"") + 10;
      header[at] = header[at] == '0' ? '1' : '0';
      if (longer) {  // as many characters as before: the blanks at its end become fewer
        header.insert(at, 16, '0');
        header.resize(header.size() - 16);
      }
    });
    expect_mentions(load_error(run_, folder_), {"rank-00002.tessera", "is damaged: its checksums of the"});
    fs::copy_file(kept, file, fs::copy_options::overwrite_existing);
  }
  EXPECT_EQ(load_error(run_, folder_), "");
}

TEST_F(CutDamage, AnyByteOfThePrefixAndHeader) {
  for (std::int64_t at = 0; at < 2048; at += 29) {
    flip_byte(file_in(folder_, 1), at);
    EXPECT_THROW(inspect_checkpoint(folder_.file("run"), true), Error) << "byte " << at;
    flip_byte(file_in(folder_, 1), at);
  }
}

TEST(CutDamageBlocks, AreCheckedByThemselves) {
  const std::vector<UnitSpec> units = {
      {.name = "table", .parameters = {{.name = "table", .shape = {4096, 512}, .cut = {.dim = 0}}}}};
  const TemporaryFolder folder;
  CutRun{.mesh = {.tensor = 2}, .type = DType::fp32, .units = units}.run(
      [&](Communicator ranks, Engine& engine) {
        save_checkpoint(folder.file("run"), ranks, engine, state_at(3));
      });
  const checkpoint::StoredBuffer buffer =
      checkpoint::decode(checkpoint::FileReader(file_in(folder, 1))).buffers.back();
  EXPECT_EQ(buffer.blocks.size(), 4u);
  flip_byte(file_in(folder, 1), buffer.offset + buffer.bytes - 1);
  EXPECT_THROW(inspect_checkpoint(folder.file("run"), true), EnvironmentError);
  const CutRun loads{.mesh = {.tensor = 4}, .type = DType::fp32, .units = units};
  expect_mentions(load_error(loads, folder),
                  {"rank-00001.tessera", "checksum of the moment2 of unit table", "expected"});
}

}  // namespace
}  // namespace tessera::testing
