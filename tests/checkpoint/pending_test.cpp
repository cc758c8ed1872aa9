// A checkpoint that is written while training goes on is of the step that it was begun at.
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <fstream>
#include <iterator>
#include <map>
#include <thread>

#include "src/checkpoint/file.h"
#include "tests/checkpoint/toy_run.h"

namespace tessera::testing {
namespace {

namespace fs = std::filesystem;

// In the way of all that is written, until it is opened or destroyed.
class Gate {
 public:
  Gate() {
    open_ = fails_ = false;
    checkpoint::file_pwrite = &Gate::pwrite;
  }
  ~Gate() {
    open();
    checkpoint::file_pwrite = ::pwrite;
  }
  Gate(const Gate&) = delete;
  Gate& operator=(const Gate&) = delete;

  void open() { open_ = true; }
  // The disk is full, as it turns out.
  void fail() {
    fails_ = true;
    open();
  }

 private:
  static ssize_t pwrite(int file, const void* data, std::size_t bytes, off_t offset) {
    while (!open_) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    if (!fails_) return ::pwrite(file, data, bytes, offset);
    errno = ENOSPC;
    return -1;
  }
  static inline std::atomic<bool> open_, fails_;
};

// Opens it on one rank, a while after all are here.
std::thread open_later(Communicator ranks, Gate& gate, std::atomic<bool>& opened) {
  ranks.barrier();
  if (ranks.rank() != 0) return {};
  return std::thread([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    opened = true;
    gate.open();
  });
}

std::map<std::string, std::string> files_in(const fs::path& folder) {
  std::map<std::string, std::string> files;
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(folder)) {
    if (!entry.is_regular_file()) continue;
    std::ifstream file(entry.path(), std::ios::binary);
    files[fs::relative(entry.path(), folder).string()] = {std::istreambuf_iterator<char>(file), {}};
  }
  return files;
}

std::vector<ToyRun> runs() {
  std::vector<ToyRun> all;
  for (const int world : {1, 2})
    for (int stage = 0; stage <= 3; ++stage)
      for (const Offload& offload :
           {Offload{}, Offload{.states = Space::host}, Offload{.states = Space::disk},
            Offload{.states = Space::disk, .states_on_device = 0.5}})
        all.push_back({.world = world, .stage = stage, .offload = offload});
  all.push_back({.world = 4, .stage = 3, .mesh = {.replicate = 2, .shard = 2}, .over_replicas = true});
  all.push_back({.world = 2, .type = DType::fp32});
  return all;
}

TEST(PendingCheckpoint, IsTheFilesOfOneThatTrainingWaitedFor) {
  for (const ToyRun& run : runs()) {
    const TemporaryFolder folder;
    std::vector<float> waited, beside;
    const auto train = [&](bool pending, std::vector<float>& result) {
      run.run([&](Communicator world, Engine& engine) {
        steps(engine, 0, 3);
        PendingCheckpoint saving;
        if (pending)
          saving = begin_checkpoint(folder.file("beside"), world, engine, state_at(3));
        else
          save_checkpoint(folder.file("waited"), world, engine, state_at(3));
        steps(engine, 3, 6);
        if (pending) {
          EXPECT_EQ(saving.finish(), fs::path(folder.file("beside")) / "step-00000003");
        }
        std::vector<float> all = read_everything(engine);
        if (world.rank() == 0) result = std::move(all);
      });
    };
    train(false, waited);
    train(true, beside);
    EXPECT_EQ(beside, waited);
    const auto files = files_in(folder.file("waited"));
    EXPECT_GT(files.size(), 1u);
    EXPECT_TRUE(files_in(folder.file("beside")) == files) << "world " << run.world << " stage " << run.stage;
    EXPECT_TRUE(inspect_checkpoint(folder.file("beside"), true).problems.empty());
  }
}

// Uses and evaluations go on meanwhile; the update does not.
TEST(PendingCheckpoint, IsReadBeforeTheNextUpdate) {
  const ToyRun run;
  const TemporaryFolder folder;
  Gate gate;
  std::atomic<bool> opened = false;
  run.run([&](Communicator world, Engine& engine) {
    PendingCheckpoint saving = begin_checkpoint(folder.file("run"), world, engine, state_at(1));
    EXPECT_TRUE(saving);
    engine.begin(StepKind::train);
    toy_uses(engine, {});
    EXPECT_FALSE(opened);
    EXPECT_FALSE(saving.written());
    Communicator others = world.duplicate("test");
    std::thread opening = open_later(others, gate, opened);
    EXPECT_TRUE(engine.step({.learning_rate = 0.01, .weight = toy_weight(engine.rank())}).applied);
    EXPECT_TRUE(opened);
    if (opening.joinable()) opening.join();
    EXPECT_FALSE(latest_checkpoint(folder.file("run"))) << "it counts when it is finished";
    others.barrier();
    while (!saving.written()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    saving.finish();
    EXPECT_FALSE(saving);
    EXPECT_FALSE(saving.written());
    EXPECT_THROW(saving.finish(), UsageError);
  });
  EXPECT_EQ(latest_checkpoint(folder.file("run"))->filename(), "step-00000001");
}

TEST(PendingCheckpoint, WhatIsLoadedMeanwhileWaits) {
  const ToyRun run;
  const TemporaryFolder folder;
  save_three(run, folder.file("old"));
  std::vector<float> loaded;
  run.run([&](Communicator world, Engine& engine) {
    steps(engine, 0, 5);
    Communicator others = world.duplicate("test");
    PendingCheckpoint saving = begin_checkpoint(folder.file("new"), world, engine, state_at(5));
    EXPECT_EQ(load_checkpoint(folder.file("old"), others, engine).step, 3);
    saving.finish();
    EXPECT_EQ(load_checkpoint(folder.file("new"), others, engine).step, 5);
    EXPECT_EQ(engine.steps_applied(), 5);
  });
  EXPECT_TRUE(inspect_checkpoint(folder.file("new"), true).problems.empty());
}

// Neither the step nor the engine fails with it.
TEST(PendingCheckpoint, ADiskThatFillsIsToldAtTheEnd) {
  const ToyRun run;
  const TemporaryFolder folder;
  save_three(run, folder.file("run"));
  IdVector<std::string> messages(2);
  run.run([&](Communicator world, Engine& engine) {
    steps(engine, 0, 4);
    {
      std::optional<Gate> gate;
      Communicator others = world.duplicate("test");
      if (world.rank() == 0) gate.emplace();
      others.barrier();
      PendingCheckpoint saving = begin_checkpoint(folder.file("run"), world, engine, state_at(4));
      if (gate) gate->fail();
      steps(engine, 4, 6);
      EXPECT_TRUE(saving.written()) << "there is nothing to wait for";
      try {
        saving.finish();
      } catch (const EnvironmentError& error) {
        messages[world.rank()] = error.what();
      }
      EXPECT_FALSE(saving);
      others.barrier();
    }
    EXPECT_FALSE(fs::exists(fs::path(folder.file("run")) / "step-00000004.tmp"));
    world.barrier();
    steps(engine, 6, 7);
    save_checkpoint(folder.file("other"), world, engine, state_at(7));
  });
  EXPECT_EQ(messages[0], messages[1]);
  expect_mentions(messages[0], {"step-00000004.tmp/rank-00000.tessera", " bytes", "No space left"});
  EXPECT_EQ(inspect_checkpoint(folder.file("run"), true).state.step, 3);
  EXPECT_EQ(inspect_checkpoint(folder.file("other"), true).state.step, 7);
}

TEST(PendingCheckpoint, LeavesNothingWhereItIsDropped) {
  const ToyRun run;
  const TemporaryFolder folder;
  save_three(run, folder.file("run"));
  const auto before = files_in(folder.file("run"));
  for (const bool before_the_step : {true, false})
    run.run([&](Communicator world, Engine& engine) {
      steps(engine, 0, 4);
      PendingCheckpoint saving = begin_checkpoint(folder.file("run"), world, engine, state_at(4));
      if (!before_the_step) steps(engine, 4, 5);
      saving = {};
      world.barrier();
      EXPECT_TRUE(files_in(folder.file("run")) == before);
      world.barrier();
      steps(engine, 5, 6);
      saving = begin_checkpoint(folder.file("other"), world, engine, state_at(6));
    });
  EXPECT_FALSE(latest_checkpoint(folder.file("other")));
}

TEST(PendingCheckpoint, AnEngineThatGoesIsNotReadAnyMore) {
  const ToyRun run;
  const TemporaryFolder folder;
  save_three(run, folder.file("run"));
  IdVector<std::string> messages(2);
  Gate gate;
  run_local(2, kBlocking, [&](Communicator world) {
    auto engine = std::make_unique<Engine>(world, toy_units(run.type), run.options());
    engine->initialize(toy_fill());
    Communicator others = world.duplicate("test");
    PendingCheckpoint saving = begin_checkpoint(folder.file("run"), world, *engine, state_at(4));
    std::atomic<bool> opened = false;
    std::thread opening = open_later(others, gate, opened);
    engine.reset();
    if (opening.joinable()) opening.join();
    try {
      saving.finish();
    } catch (const UsageError& error) {
      messages[world.rank()] = error.what();
    }
  });
  EXPECT_EQ(messages[0], messages[1]);
  expect_mentions(messages[0], {"engine was destroyed", "finish()"});
  EXPECT_EQ(inspect_checkpoint(folder.file("run"), true).state.step, 3);
}

// Whoever catches what a step threw and finishes the checkpoint waits for nobody, wherever the peer ended.
TEST(PendingCheckpoint, FailsWithTheStepBesideIt) {
  const ToyRun run;
  const TemporaryFolder folder;
  save_three(run, folder.file("run"));
  for (const bool behind_the_uses : {false, true}) {
    const auto begin = std::chrono::steady_clock::now();
    std::string told;
    const auto body = [&](Communicator world, Engine& engine) {
      PendingCheckpoint saving = begin_checkpoint(folder.file("run"), world, engine, state_at(4));
      try {
        if (world.rank() == 0 || behind_the_uses) {
          engine.begin(StepKind::train);
          toy_uses(engine, {});
        }
        if (world.rank() == 1) throw UsageError("a rank ends");
        (void)engine.step({.weight = 1});
        ADD_FAILURE() << "a step without its peer";
      } catch (const CommunicationError&) {
        try {
          saving.finish();
        } catch (const CommunicationError& error) {
          told = error.what();
        }
        EXPECT_FALSE(saving);
      }
    };
    EXPECT_THROW(run.run(body), UsageError);
    EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(15));
    EXPECT_NE(told.find("rank 1"), std::string::npos) << told;
    EXPECT_EQ(inspect_checkpoint(folder.file("run"), true).state.step, 3);
    EXPECT_FALSE(fs::exists(folder.file("run") + "/step-00000004.tmp"));
  }
}

TEST(PendingCheckpoint, TwoAtOnceGoIntoTwoFolders) {
  const ToyRun run;
  const TemporaryFolder folder;
  run.run([&](Communicator world, Engine& engine) {
    Communicator others = world.duplicate("test");
    PendingCheckpoint one = begin_checkpoint(folder.file("one") + "/", world, engine, state_at(1));
    for (const bool pending : {true, false}) try {
        if (pending)
          begin_checkpoint(folder.file("one") + "/", others, engine, state_at(2));
        else
          save_checkpoint(folder.file("one"), others, engine, state_at(2));
        ADD_FAILURE() << "a second one in the folder";
      } catch (const UsageError& error) {
        expect_mentions(error.what(), {pending ? "begin_checkpoint" : "save_checkpoint",
                                       "is being saved into '" + folder.file("one"), "finish()"});
      }
    PendingCheckpoint other = begin_checkpoint(folder.file("two"), others, engine, state_at(1));
    steps(engine, 1, 2);
    one.finish();
    other.finish();
    save_checkpoint(folder.file("one"), world, engine, state_at(2));
  });
  EXPECT_EQ(inspect_checkpoint(folder.file("one"), true).state.step, 2);
  EXPECT_EQ(inspect_checkpoint(folder.file("two"), true).state.step, 1);
}

}  // namespace
}  // namespace tessera::testing
