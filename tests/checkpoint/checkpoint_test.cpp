// What is saved is what is loaded, bit for bit, and the folder holds whole checkpoints only.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <fstream>

#include "tessera/layout.h"
#include "tests/checkpoint/edit_header.h"
#include "tests/checkpoint/toy_run.h"

namespace tessera::testing {
namespace {

namespace fs = std::filesystem;

std::vector<std::string> names_in(const fs::path& folder) {
  std::vector<std::string> names;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder))
    names.push_back(entry.path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

// Bits, for NaN equals NaN here and −0 is not 0.
std::vector<std::uint32_t> bits(const std::vector<float>& values) {
  std::vector<std::uint32_t> result(values.size());
  std::memcpy(result.data(), values.data(), values.size() * sizeof(float));
  return result;
}

class Checkpoint : public ::testing::TestWithParam<std::tuple<int, int, DType>> {};

TEST_P(Checkpoint, ContinuesBitwise) {
  const auto [world, stage, type] = GetParam();
  const ToyRun run{.world = world, .stage = stage, .type = type};
  const TemporaryFolder folder;
  std::vector<std::uint32_t> expected, found;
  Engine::Counters expected_counters, counters;
  run.run([&](Communicator ranks, Engine& engine) {
    steps(engine, 0, 3);
    const fs::path path = save_checkpoint(folder.file("run"), ranks, engine, state_at(3));
    EXPECT_EQ(path, fs::path(folder.file("run")) / "step-00000003");
    steps(engine, 3, 6);
    const std::vector<float> all = read_everything(engine);
    if (ranks.rank() == 0) expected = bits(all), expected_counters = engine.counters();
  });
  run.run([&](Communicator ranks, Engine& engine) {
    steps(engine, 0, 1);  // anything: all of it must be replaced
    const RunState state = load_checkpoint(folder.file("run"), ranks, engine);
    EXPECT_EQ(state.step, 3);
    EXPECT_EQ(state.samples, 24);
    EXPECT_EQ(state.configuration, "[run]\nsteps = 6\n");
    EXPECT_EQ(state.tokens, 240);
    steps(engine, 3, 6);
    const std::vector<float> all = read_everything(engine);
    if (ranks.rank() == 0) found = bits(all), counters = engine.counters();
  });
  EXPECT_FALSE(expected.empty());
  EXPECT_EQ(found, expected);
  EXPECT_EQ(counters.steps_applied, 6);
  EXPECT_EQ(counters.steps_applied, expected_counters.steps_applied);
  EXPECT_EQ(counters.loss_scaler, expected_counters.loss_scaler);
}

INSTANTIATE_TEST_SUITE_P(All, Checkpoint,
                         ::testing::Combine(::testing::Values(1, 2, 4), ::testing::Values(0, 1, 2, 3),
                                            ::testing::Values(DType::fp32, DType::bf16)));

// Where states live is no part of what is saved: a run goes on with them elsewhere.
TEST(CheckpointOffload, ContinuesBitwiseInAnotherSpace) {
  const std::array<Offload, 3> offloads = {Offload{.states = Space::disk, .parameters = Space::disk},
                                           Offload{.states = Space::host, .states_on_device = 0.5},
                                           Offload{}};
  for (const DType type : {DType::fp32, DType::bf16}) {
    std::vector<std::uint32_t> expected;
    ToyRun{.type = type}.run([&](Communicator ranks, Engine& engine) {
      steps(engine, 0, 6);
      const std::vector<float> all = read_everything(engine);
      if (ranks.rank() == 0) expected = bits(all);
    });
    for (const Offload& saved : offloads)
      for (const Offload& continued : offloads) {
        const TemporaryFolder folder;
        save_three({.type = type, .offload = saved}, folder.file("run"));
        ToyRun{.type = type, .offload = continued}.run([&](Communicator ranks, Engine& engine) {
          load_checkpoint(folder.file("run"), ranks, engine);
          steps(engine, 3, 6);
          const std::vector<float> all = read_everything(engine);
          if (ranks.rank() == 0) {
            EXPECT_EQ(bits(all), expected);
          }
        });
      }
  }
}

// With one moment: written by two ranks, and continued by one at another stage.
TEST(CheckpointLion, ContinuesBitwiseAndIsNoOtherOptimizers) {
  for (const DType moments : {DType::fp32, DType::bf16}) {
    const ToyRun one{.world = 1, .stage = 0, .optimizer = LionOptions{}, .moments = moments};
    const ToyRun two{.world = 2, .stage = 3, .optimizer = LionOptions{}, .moments = moments};
    const TemporaryFolder folder;
    save_three(two, folder.file("run"));
    std::vector<std::uint32_t> expected, found;
    two.run([&](Communicator ranks, Engine& engine) {
      load_checkpoint(folder.file("run"), ranks, engine);
      const std::vector<float> all = read_everything(engine);
      if (ranks.rank() == 0) expected = bits(all);
    });
    one.run([&](Communicator ranks, Engine& engine) {
      load_checkpoint(folder.file("run"), ranks, engine);
      found = bits(read_everything(engine));
    });
    EXPECT_FALSE(expected.empty());
    EXPECT_EQ(found, expected);
    std::vector<std::uint32_t> through, resumed;
    two.run([&](Communicator ranks, Engine& engine) {
      steps(engine, 0, 6);
      const std::vector<float> all = read_everything(engine);
      if (ranks.rank() == 0) through = bits(all);
    });
    two.run([&](Communicator ranks, Engine& engine) {
      load_checkpoint(folder.file("run"), ranks, engine);
      steps(engine, 3, 6);
      const std::vector<float> all = read_everything(engine);
      if (ranks.rank() == 0) resumed = bits(all);
    });
    EXPECT_EQ(resumed, through);
    const ToyRun sgd{.world = 1, .stage = 0, .optimizer = SgdOptions{.momentum = 0.9}, .moments = moments};
    sgd.run([&](Communicator ranks, Engine& engine) {
      EXPECT_THROW(load_checkpoint(folder.file("run"), ranks, engine), UsageError);
    });
  }
}

// Nor are mesh and strategy: each rank reads what it holds from whichever files have it.
ToyRun on(const Mesh& mesh, int stage, bool over_replicas = false) {
  return {.world = mesh.world(), .stage = stage, .mesh = mesh, .over_replicas = over_replicas};
}

class CheckpointReshard : public ::testing::TestWithParam<DType> {};

TEST_P(CheckpointReshard, AnyMeshAndStageReadsWhatAnyOtherWrote) {
  std::vector<ToyRun> runs = {on({}, 0),
                              on({.shard = 2}, 0),
                              on({.shard = 2}, 1),
                              on({.shard = 3}, 3),
                              on({.shard = 4}, 2),
                              on({.replicate = 2, .shard = 2}, 3),
                              on({.replicate = 3}, 1, true),
                              on({.replicate = 2, .shard = 2}, 3, true),
                              on({.replicate = 2, .shard = 3}, 1, true),
                              on({.pipeline = 2, .shard = 2}, 3),
                              on({.pipeline = 3}, 0),
                              on({.pipeline = 2, .replicate = 2}, 1, true)};
  for (ToyRun& run : runs) run.type = GetParam();
  std::vector<std::uint32_t> expected;
  for (const ToyRun& saves : runs) {
    const TemporaryFolder folder;
    saves.run([&](Communicator ranks, Engine& engine) {
      write_everything(engine, 1);
      save_checkpoint(folder.file("run"), ranks, engine, state_at(3));
      const std::vector<float> all = read_everything(engine);
      if (ranks.rank() == 0) expected = bits(all);
    });
    for (const ToyRun& loads : runs) {
      std::vector<std::uint32_t> found;
      loads.run([&](Communicator ranks, Engine& engine) {
        write_everything(engine, 2);  // all of it must be replaced
        EXPECT_EQ(load_checkpoint(folder.file("run"), ranks, engine).step, 3);
        const std::vector<float> all = read_everything(engine);
        if (ranks.rank() == 0) found = bits(all);
      });
      EXPECT_FALSE(found.empty());
      EXPECT_EQ(found, expected) << "saved by " << to_string(saves.mesh) << " at stage " << saves.stage
                                 << ", loaded by " << to_string(loads.mesh) << " at stage " << loads.stage;
    }
  }
}

TEST_P(CheckpointReshard, ContinuesBitwiseAtAnotherStage) {
  std::vector<std::uint32_t> expected;
  ToyRun{.type = GetParam()}.run([&](Communicator ranks, Engine& engine) {
    steps(engine, 0, 6);
    const std::vector<float> all = read_everything(engine);
    if (ranks.rank() == 0) expected = bits(all);
  });
  for (const int saved : {0, 1, 2, 3}) {
    const TemporaryFolder folder;
    save_three({.stage = saved, .type = GetParam()}, folder.file("run"));
    for (const int continued : {0, 1, 2, 3})
      ToyRun{.stage = continued, .type = GetParam()}.run([&](Communicator ranks, Engine& engine) {
        steps(engine, 0, 1);  // anything: all of it must be replaced, padding stays zero
        load_checkpoint(folder.file("run"), ranks, engine);
        steps(engine, 3, 6);
        const std::vector<float> all = read_everything(engine);
        if (ranks.rank() == 0) {
          EXPECT_EQ(bits(all), expected) << "saved at stage " << saved << ", continued at " << continued;
        }
      });
  }
}

// Also behind the end of what was stored, and where buffers come by way of memory that held others.
TEST_P(CheckpointReshard, PaddingStaysZero) {
  const TemporaryFolder folder;
  save_three({.world = 2, .type = GetParam()}, folder.file("run"));
  const ToyRun loads{.world = 3, .type = GetParam(), .offload = {.states = Space::disk}};
  loads.run([&](Communicator ranks, Engine& engine) {
    load_checkpoint(folder.file("run"), ranks, engine);
    const Layout& layout = engine.layout();
    for (FlatId flat = 0; flat < layout.flats().count(); ++flat)
      for (const StateKind state :
           {StateKind::parameter, StateKind::master, StateKind::moment1, StateKind::moment2}) {
        std::vector<std::byte> bytes(static_cast<std::size_t>(engine.persistent_bytes(flat, state)));
        if (bytes.empty()) continue;
        engine.read_persistent(flat, state, 0, bytes);
        const std::int64_t numel = layout.flat(flat).shard_numel, begin = ranks.rank() * numel;
        const std::int64_t element = static_cast<std::int64_t>(bytes.size()) / numel;
        for (const Piece& gap : layout.gaps(flat, begin, begin + numel)) {
          const auto padding =
              std::span(bytes).subspan(static_cast<std::size_t>((gap.offset - begin) * element),
                                       static_cast<std::size_t>(gap.numel * element));
          EXPECT_TRUE(std::ranges::all_of(padding, [](std::byte one) { return one == std::byte{0}; }))
              << "flat " << flat << " on rank " << ranks.rank();
        }
      }
  });
}

INSTANTIATE_TEST_SUITE_P(Types, CheckpointReshard, ::testing::Values(DType::fp32, DType::bf16));

// Buffers of several pieces, which part blocks of the disk where another number of ranks wrote them.
TEST(CheckpointReshardPieces, BuffersLargerThanAPiece) {
  constexpr std::int64_t kNumel = 2'500'003;
  const TemporaryFolder folder;
  const std::vector<UnitSpec> units = {
      {.name = "wide", .parameters = {{.name = "wide", .shape = {kNumel}, .dtype = DType::bf16}}}};
  const auto value = [](StateKind state, std::int64_t at) {
    return static_cast<float>((at * 7 + static_cast<int>(state)) % 65521) / 64.0f;
  };
  const auto options_of = [](int world, Space states) {
    EngineOptions options = toy_options(world, 3);
    options.strategy.offload.states = states;
    options.disk_directory = std::filesystem::temp_directory_path();
    return options;
  };
  const std::array kStates = {StateKind::master, StateKind::moment1, StateKind::moment2};
  run_local(2, {}, [&](Communicator world) {
    Engine engine(world, units, options_of(2, Space::disk));
    std::vector<float> own(kNumel);
    for (const StateKind state : kStates) {
      for (std::int64_t at = 0; at < kNumel; ++at) own[static_cast<std::size_t>(at)] = value(state, at);
      engine.write(0, state, 0, own);
    }
    save_checkpoint(folder.file("run"), world, engine, state_at(1));
  });
  for (const int world : {1, 2, 3})
    for (const Space space : {Space::disk, Space::device})
      run_local(world, {}, [&](Communicator ranks) {
        Engine engine(ranks, units, options_of(world, space));
        load_checkpoint(folder.file("run"), ranks, engine);
        std::vector<float> own(kNumel);
        for (const StateKind state : kStates) {
          engine.read(0, state, 0, own);
          for (std::int64_t at = 0; at < kNumel; ++at)
            ASSERT_EQ(own[static_cast<std::size_t>(at)], value(state, at)) << world << " " << at;
        }
      });
}

TEST(CheckpointFiles, EachBufferIsStoredOnce) {
  for (const int stage : {0, 2, 3}) {
    const ToyRun run{.world = 4, .stage = stage};
    const TemporaryFolder folder;
    save_three(run, folder.file("run"));
    const CheckpointInfo info = inspect_checkpoint(folder.file("run"), true);
    // Replicated states are all in the file of rank 0.
    EXPECT_EQ(info.files.size(), stage == 0 ? 1u : 4u) << "stage " << stage;
    std::int64_t stored = 0, padded = 0;
    for (const CheckpointInfo::File& file : info.files) stored += file.bytes;
    const Layout layout(toy_units(run.type), 4);
    for (const Flat& flat : layout.flats()) {
      const std::int64_t states = !flat.trainable ? 0 : flat.dtype == DType::fp32 ? 8 : 12;
      padded += flat.padded_numel * (bytes_of(flat.dtype) + states);
    }
    EXPECT_GE(stored, padded);
    EXPECT_LE(stored, padded + static_cast<std::int64_t>(info.files.size()) * 16384);  // headers
  }
}

// As the first version wrote it: without tokens.
void make_version_one(const fs::path& file) {
  edit_header(file, [](std::string& header) {
    replace_in(header, "\"tokens\":240,", "");
    replace_in(header, "\"version\":2", "\"version\":1");
  });
}

TEST(CheckpointFiles, OfTheFirstVersionLoad) {
  const ToyRun run;
  const TemporaryFolder folder;
  save_three(run, folder.file("run"));
  for (const auto& file : fs::directory_iterator(fs::path(folder.file("run")) / "step-00000003"))
    make_version_one(file.path());
  run.run([&](Communicator ranks, Engine& engine) {
    const RunState state = load_checkpoint(folder.file("run"), ranks, engine);
    EXPECT_EQ(state.step, 3);
    EXPECT_EQ(state.tokens, 0);
    EXPECT_EQ(engine.counters().steps_applied, 3);
    EXPECT_EQ(engine.loss_scale(), 2048);
  });
}

// Files have the numbers that ranks have in the engine, whatever the communicator's are.
TEST(CheckpointFiles, AreOfTheEnginesRanks) {
  for (const int stage : {0, 3}) {
    const ToyRun run{.stage = stage};
    const TemporaryFolder folder;
    std::vector<std::uint32_t> expected, found;
    run_local(2, {.deadline = std::chrono::seconds(20)}, [&](Communicator world) {
      Engine engine(world.subgroup({1, 0}, "turned"), toy_units(run.type), run.options());
      engine.initialize(toy_fill());
      steps(engine, 0, 3);
      save_checkpoint(folder.file("run"), world, engine, state_at(3));
      const std::vector<float> all = read_everything(engine);
      if (engine.rank() == 0) expected = bits(all);
    });
    EXPECT_EQ(inspect_checkpoint(folder.file("run"), true).problems, std::vector<std::string>());
    run.run([&](Communicator ranks, Engine& engine) {
      load_checkpoint(folder.file("run"), ranks, engine);
      const std::vector<float> all = read_everything(engine);
      if (ranks.rank() == 0) found = bits(all);
    });
    EXPECT_EQ(found, expected) << "stage " << stage;
  }
}

TEST(CheckpointFiles, InspectTellsWhatIsStored) {
  const ToyRun run;
  const TemporaryFolder folder;
  save_three(run, folder.file("run"));
  for (const char* name : {"run", "run/step-00000003"}) {
    const CheckpointInfo info = inspect_checkpoint(folder.file(name));
    EXPECT_EQ(info.state.step, 3);
    EXPECT_EQ(info.counters.steps_applied, 3);
    EXPECT_EQ(info.counters.loss_scaler.value().scale, 2048.0);
    EXPECT_EQ(info.mesh.shard, 2);
    EXPECT_EQ(info.placements, Placements::of_stage(3));
    EXPECT_EQ(info.units, 5);
    EXPECT_EQ(info.parameter_numel, Layout(toy_units(run.type), 1).total_numel());
    ASSERT_EQ(info.files.size(), 2u);
    EXPECT_EQ(info.files[1].name, "rank-00001.tessera");
    EXPECT_EQ(info.files[1].rank, 1);
  }
}

// What cannot be removed neither fails the save that takes its place nor the next one.
TEST(CheckpointFiles, WhatCannotBeRemovedStays) {
  const ToyRun run;
  const TemporaryFolder folder;
  const fs::path to = folder.file("run");
  run.run([&](Communicator ranks, Engine& engine) {
    for (const std::int64_t step : {1, 2, 3}) {
      PendingCheckpoint pending = begin_checkpoint(to, ranks, engine, state_at(step), 1);
      if (step == 2 && ranks.rank() == 0)  // the name that a removal needs is taken by what is not empty
        fs::create_directories(to / "step-00000001.removed.tmp" / "x");
      EXPECT_EQ(pending.note(), "");
      pending.finish();
      const bool stays = step == 2 && ranks.rank() == 0;
      EXPECT_EQ(pending.note().empty(), !stays) << pending.note();
      if (stays) expect_mentions(pending.note(), {"cannot remove", "run/step-00000001"});
      EXPECT_EQ(fs::exists(to / "step-00000001"), step < 3);
    }
  });
  EXPECT_EQ(names_in(to), (std::vector<std::string>{"latest", "step-00000003"}));
}

TEST(CheckpointFiles, KeepsTheLastOnes) {
  const ToyRun run;
  const TemporaryFolder folder;
  run.run([&](Communicator ranks, Engine& engine) {
    for (int step = 0; step < 4; ++step) {
      steps(engine, step, step + 1);
      save_checkpoint(folder.file("run"), ranks, engine, state_at(step + 1), 2);
    }
  });
  EXPECT_EQ(names_in(folder.file("run")),
            (std::vector<std::string>{"latest", "step-00000003", "step-00000004"}));
  EXPECT_EQ(latest_checkpoint(folder.file("run"))->filename(), "step-00000004");
}

TEST(CheckpointFiles, SavingAStepAgainReplacesIt) {
  const ToyRun run;
  const TemporaryFolder folder;
  save_three(run, folder.file("run"));
  run.run([&](Communicator ranks, Engine& engine) {
    steps(engine, 0, 5);
    save_checkpoint(folder.file("run"), ranks, engine, state_at(3));
  });
  EXPECT_EQ(names_in(folder.file("run")), (std::vector<std::string>{"latest", "step-00000003"}));
  EXPECT_EQ(inspect_checkpoint(folder.file("run"), true).counters.steps_applied, 5);
}

TEST(CheckpointFiles, AnInterruptedSaveIsPassedOverAndRemoved) {
  const ToyRun run;
  const TemporaryFolder folder;
  const fs::path place = folder.file("run");
  save_three(run, place);
  fs::create_directories(place / "step-00000009.tmp");
  std::ofstream(place / "step-00000009.tmp" / "rank-00000.tessera") << "half";
  fs::create_directories(place / "step-00000008");  // no file of rank 0: not a checkpoint
  EXPECT_EQ(latest_checkpoint(place)->filename(), "step-00000003");
  fs::remove(place / "latest");
  EXPECT_EQ(latest_checkpoint(place)->filename(), "step-00000003");
  std::ofstream(place / "latest") << "step-00000099\n";  // names nothing
  EXPECT_THROW(latest_checkpoint(place), EnvironmentError);
  run.run([&](Communicator ranks, Engine& engine) {
    steps(engine, 0, 4);
    save_checkpoint(place, ranks, engine, state_at(4));
  });
  EXPECT_FALSE(fs::exists(place / "step-00000009.tmp"));
  EXPECT_EQ(latest_checkpoint(place)->filename(), "step-00000004");
}

// What `body` is refused with, on each rank of a world of its own.
std::vector<std::string> refusals(const std::function<void(Communicator, Engine&)>& body) {
  std::vector<std::string> messages;
  EXPECT_THROW(ToyRun{}.run(body, &messages), Error);
  return messages;
}

TEST(CheckpointMisuse, WorldsThatAreNotTheEngines) {
  const TemporaryFolder folder;
  const std::string path = folder.file("run");
  save_three(ToyRun{}, path);
  for (const bool load : {false, true}) {
    const auto call = [&](Communicator world, Engine& engine) {
      load ? load_checkpoint(path, world, engine)
           : (save_checkpoint(path, world, engine, state_at(4)), RunState{});
    };
    const std::string name = load ? "load_checkpoint: " : "save_checkpoint: ";
    for (const std::string& message : refusals([&](Communicator, Engine& engine) { call({}, engine); }))
      EXPECT_EQ(message, name + "world is an empty communicator; give one of the engine's ranks");
    for (const std::string& message : refusals([&](Communicator world, Engine&engine) {
           call(world.subgroup({world.rank()}, "alone"), engine);
         }))
      EXPECT_EQ(message, name +
                             "world 'alone' has 1 ranks and the engine has 2; give a communicator of all of "
                             "the engine's ranks");
    for (const std::string& message : refusals([&](Communicator world, Engine&engine) {
           engine.begin(StepKind::train);
           call(world, engine);
         }))
      EXPECT_NE(message.find(name), std::string::npos) << message;
  }
  EXPECT_EQ(names_in(path), (std::vector<std::string>{"latest", "step-00000003"}));
}

// A folder that is on a disk of its own for each rank, say.
TEST(CheckpointMisuse, FoldersThatDiffer) {
  const TemporaryFolder folder;
  for (const std::string& message : refusals([&](Communicator world, Engine&engine) {
         save_checkpoint(folder.file("run" + std::to_string(world.rank())), world, engine, state_at(1));
       })) {
    EXPECT_NE(message.find("rank 1 does not find '"), std::string::npos) << message;
    EXPECT_NE(message.find("all ranks must see the same folder"), std::string::npos) << message;
  }
}

TEST(CheckpointMisuse, AStepsOwnFolder) {
  const TemporaryFolder folder;
  save_three(ToyRun{}, folder.file("run"));
  const std::string own = folder.file("run") + "/step-00000003";
  for (const std::string& message :
       refusals([&](Communicator world, Engine&engine) { save_checkpoint(own, world, engine, state_at(4)); }))
    EXPECT_EQ(message.find("save_checkpoint: '" + own + "' is one checkpoint"), 0U) << message;
  EXPECT_EQ(names_in(own), (std::vector<std::string>{"rank-00000.tessera", "rank-00001.tessera"}));
}

// Its saves would remove what is there.
TEST(CheckpointMisuse, TheFolderOfAnotherModel) {
  const TemporaryFolder folder;
  save_three(ToyRun{}, folder.file("run"));
  const auto before = names_in(folder.file("run"));
  ToyRun{.type = DType::fp32}.run([&](Communicator ranks, Engine& engine) {
    try {
      save_checkpoint(folder.file("run"), ranks, engine, state_at(1));
      ADD_FAILURE() << "saved";
    } catch (const UsageError& error) {
      expect_mentions(error.what(),
                      {"save_checkpoint: '" + folder.file("run") + "' has another run's checkpoints",
                       "step-00000003", "bf16 there and", "fp32 here", "a folder of its own"});
    }
  });
  EXPECT_EQ(names_in(folder.file("run")), before);
}

TEST(CheckpointMisuse, NoFolder) {
  for (const std::string& message :
       refusals([&](Communicator world, Engine&engine) { save_checkpoint("", world, engine, state_at(4)); }))
    EXPECT_EQ(message.find("save_checkpoint: folder is empty"), 0U) << message;
  const TemporaryFolder folder;
  for (const std::string& message : refusals([&](Communicator world, Engine&engine) {
         save_checkpoint(world.rank() == 0 ? folder.file("run") : "", world, engine, state_at(4));
       }))
    EXPECT_EQ(message.find("save_checkpoint: folder is empty"), 0U) << message;
  EXPECT_FALSE(std::filesystem::exists(folder.file("run")));
}

TEST(CheckpointMisuse, StatesThatDiffer) {
  const TemporaryFolder folder;
  const auto refused = [&](const std::string& differs, const std::function<void(RunState&, int&)>& change) {
    for (const std::string& message : refusals([&](Communicator world, Engine&engine) {
           RunState state = state_at(1);
           int keep = 2;
           if (world.rank() == 1) change(state, keep);
           save_checkpoint(folder.file("run"), world, engine, state, keep);
         }))
      EXPECT_EQ(message, "save_checkpoint: " + differs + " on rank 0; give all ranks the same");
  };
  refused("step is 5 on rank 1 and 1", [](RunState& state, int&) { state.step = 5; });
  refused("samples is 7 on rank 1 and 8", [](RunState& state, int&) { state.samples = 7; });
  refused("tokens is 0 on rank 1 and 80", [](RunState& state, int&) { state.tokens = 0; });
  refused("keep is 3 on rank 1 and 2", [](RunState&, int& keep) { keep = 3; });
  refused("keep is 0 on rank 1 and 2", [](RunState&, int& keep) { keep = 0; });
  EXPECT_FALSE(latest_checkpoint(folder.file("run")));
}

TEST(CheckpointFiles, NothingIsThere) {
  const TemporaryFolder folder;
  EXPECT_FALSE(latest_checkpoint(folder.file("none")));
  EXPECT_THROW(inspect_checkpoint(folder.file("none")), UsageError);
  ToyRun{}.run([&](Communicator ranks, Engine& engine) {
    EXPECT_THROW(load_checkpoint(folder.file("none"), ranks, engine), UsageError);
  });
}

}  // namespace
}  // namespace tessera::testing
