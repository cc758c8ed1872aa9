// What is saved is what is loaded, bit for bit, and the folder holds whole checkpoints only.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <fstream>

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

TEST(CheckpointFiles, InspectTellsWhatIsStored) {
  const ToyRun run;
  const TemporaryFolder folder;
  save_three(run, folder.file("run"));
  for (const char* name : {"run", "run/step-00000003"}) {
    const CheckpointInfo info = inspect_checkpoint(folder.file(name));
    EXPECT_EQ(info.state.step, 3);
    EXPECT_EQ(info.counters.steps_applied, 3);
    EXPECT_EQ(info.counters.loss_scaler.scale, 2048.0);
    EXPECT_EQ(info.mesh.shard, 2);
    EXPECT_EQ(info.placements, Placements::of_stage(3));
    EXPECT_EQ(info.units, 5);
    EXPECT_EQ(info.parameter_numel, Layout(toy_units(run.type), 1).total_numel());
    ASSERT_EQ(info.files.size(), 2u);
    EXPECT_EQ(info.files[1].name, "rank-00001.tessera");
    EXPECT_EQ(info.files[1].rank, 1);
  }
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
