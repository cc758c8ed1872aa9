// Checkpoints by the C API: what is saved continues, on other ranks and at another stage, and mistakes are
// said.
#include "tessera/c_checkpoint.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "tests/engine/c_try.h"
#include "tests/trainer/temporary_folder.h"

namespace tessera::testing {
namespace {

constexpr std::int64_t kNumel = 210;

tessera_status make_engine(tessera_world* world, int stage, int optimizer, tessera_engine** engine) {
  const std::int64_t shape[] = {30, 7};
  const tessera_parameter parameter{"weight", shape, 2, TESSERA_FP32, 0, 0, nullptr, nullptr, 0};
  const tessera_unit unit{"unit", &parameter, 1, 0, 0, 0, 0, 0, 0};
  tessera_options options;
  TRY(tessera_options_init(&options, sizeof options));
  options.stage = stage;
  options.optimizer = optimizer;
  TRY(tessera_engine_create(world, &unit, 1, &options, engine));
  return tessera_initialize(
      *engine,
      [](std::int32_t, std::int64_t begin, float* values, std::int64_t numel, void*) {
        for (std::int64_t k = 0; k < numel; ++k) values[k] = std::sin(static_cast<float>(begin + k));
        return tessera_status{TESSERA_OK};
      },
      nullptr);
}

// Of a mean loss whose gradient is the parameter itself, on any ranks.
tessera_status train_step(tessera_engine* engine) {
  TRY(tessera_begin(engine, TESSERA_TRAIN, 1));
  tessera_lease* lease = nullptr;
  TRY(tessera_use_unit(engine, 0, TESSERA_FORWARD, &lease));
  TRY(tessera_lease_end(lease));
  TRY(tessera_use_unit(engine, 0, TESSERA_BACKWARD, &lease));
  tessera_view parameter{}, gradient{};
  TRY(tessera_lease_parameter(lease, 0, &parameter));
  TRY(tessera_lease_gradient(lease, 0, &gradient));
  std::memcpy(gradient.data, parameter.data, kNumel * sizeof(float));
  TRY(tessera_lease_end(lease));
  const tessera_step_inputs inputs{.learning_rate = 0.01, .weight = 1.0, .loss = 0.0};
  return tessera_step(engine, &inputs, nullptr);
}

struct Training {
  std::string folder;
  int ranks = 2, stage = 3;
  int optimizer = TESSERA_ADAMW;
  int begin = 0, end = 0;  // steps
  bool beside = false;     // saves while another step is trained
  std::vector<float> states = {};
  tessera_run_state loaded = {};
  std::string configuration = {}, data = {}, latest = {};
};

tessera_status save_beside(tessera_world* world, tessera_engine* engine, const Training& run,
                           const tessera_run_state& state) {
  tessera_pending_checkpoint* pending = nullptr;
  TRY(tessera_begin_checkpoint(run.folder.c_str(), world, engine, &state, 1, &pending));
  std::int32_t written = 1;
  TRY(tessera_pending_checkpoint_written(pending, &written));
  EXPECT_EQ(written, 0);
  TRY(train_step(engine));
  const char* path = nullptr;
  TRY(tessera_finish_checkpoint(pending, &path));
  EXPECT_EQ(std::string(path), run.folder + "/step-00000003");
  // What is dropped leaves nothing.
  TRY(tessera_begin_checkpoint((run.folder + "-dropped").c_str(), world, engine, &state, 1, &pending));
  TRY(train_step(engine));
  return tessera_pending_checkpoint_destroy(pending);
}

// Continues at `begin` where that is above 0, and saves at the end.
tessera_status run_engine(tessera_world* world, tessera_engine* engine, int rank, Training& run) {
  tessera_run_state loaded{};
  if (run.begin > 0) TRY(tessera_load_checkpoint(run.folder.c_str(), world, engine, &loaded));
  for (int step = run.begin; step < run.end; ++step) TRY(train_step(engine));
  const tessera_run_state state{run.end, 8 * run.end, "steps = 6", nullptr, 80 * run.end};
  if (run.beside)
    TRY(save_beside(world, engine, run, state));
  else
    TRY(tessera_save_checkpoint(run.folder.c_str(), world, engine, &state, 1));
  const char* latest = nullptr;
  TRY(tessera_latest_checkpoint(run.folder.c_str(), world, &latest));
  std::vector<float> states;
  for (const int state_of : {TESSERA_MASTER, TESSERA_MOMENT1, TESSERA_MOMENT2}) {
    std::vector<float> values(kNumel);
    TRY(tessera_read(engine, 0, state_of, 0, values.data(), kNumel));
    states.insert(states.end(), values.begin(), values.end());
  }
  if (rank != 0) return TESSERA_OK;
  run.states = states;
  run.latest = latest;
  run.loaded = loaded;
  if (run.begin > 0) run.configuration = loaded.configuration, run.data = loaded.data;
  return TESSERA_OK;
}

tessera_status run_rank(tessera_world* world, void* user) {
  Training& run = *static_cast<Training*>(user);
  std::int32_t rank = 0;
  TRY(tessera_world_rank(world, &rank));
  tessera_engine* engine = nullptr;
  tessera_status status = make_engine(world, run.stage, run.optimizer, &engine);
  if (status == TESSERA_OK) status = run_engine(world, engine, rank, run);
  tessera_engine_destroy(engine);
  return status;
}

tessera_status start(Training& run) { return tessera_run_ranks(run.ranks, 20000, &run_rank, &run); }

TEST(CCheckpoint, ContinuesOnOtherRanksAtAnotherStage) {
  const TemporaryFolder whole_folder, folder;
  Training whole{.folder = whole_folder.file("run"), .end = 6};
  ASSERT_EQ(start(whole), TESSERA_OK) << tessera_last_error();

  Training first{.folder = folder.file("run"), .end = 3},
      second{.folder = folder.file("run"), .ranks = 1, .stage = 1};
  second.begin = 3, second.end = 6;
  ASSERT_EQ(start(first), TESSERA_OK) << tessera_last_error();
  EXPECT_EQ(first.latest, folder.file("run/step-00000003"));
  ASSERT_EQ(start(second), TESSERA_OK) << tessera_last_error();
  EXPECT_EQ(second.states, whole.states);
  EXPECT_NE(second.states, first.states);
  EXPECT_EQ(second.loaded.step, 3);
  EXPECT_EQ(second.loaded.samples, 24);
  EXPECT_EQ(second.configuration, "steps = 6");
  EXPECT_EQ(second.data, "");
  EXPECT_FALSE(std::filesystem::exists(first.latest)) << "keep is 1";
}

TEST(CCheckpoint, WrittenBesideTraining) {
  const TemporaryFolder whole_folder, folder;
  Training whole{.folder = whole_folder.file("run"), .end = 6};
  ASSERT_EQ(start(whole), TESSERA_OK) << tessera_last_error();

  Training first{.folder = folder.file("run"), .end = 3, .beside = true},
      second{.folder = folder.file("run"), .begin = 3, .end = 6};
  ASSERT_EQ(start(first), TESSERA_OK) << tessera_last_error();
  ASSERT_EQ(start(second), TESSERA_OK) << tessera_last_error();
  EXPECT_EQ(second.states, whole.states);
  EXPECT_EQ(second.loaded.step, 3);
  EXPECT_FALSE(std::filesystem::exists(folder.file("run-dropped/step-00000003")));
  EXPECT_FALSE(std::filesystem::exists(folder.file("run-dropped/step-00000003.tmp")));
}

TEST(CCheckpoint, WhatDoesNotFitIsRefused) {
  const TemporaryFolder folder;
  Training run{.folder = folder.file("run"), .end = 1};
  ASSERT_EQ(start(run), TESSERA_OK) << tessera_last_error();
  Training other{.folder = folder.file("run"), .optimizer = TESSERA_SGD, .begin = 1, .end = 2};
  EXPECT_EQ(start(other), TESSERA_USAGE);
  EXPECT_NE(std::strstr(tessera_last_error(), "sgd"), nullptr) << tessera_last_error();
  Training missing{.folder = folder.file("none"), .begin = 1, .end = 2};
  EXPECT_EQ(start(missing), TESSERA_USAGE);
  EXPECT_NE(std::strstr(tessera_last_error(), "none"), nullptr) << tessera_last_error();
}

TEST(CCheckpoint, NullsAreNamed) {
  const TemporaryFolder folder;
  const auto refusal = [](tessera_status status) {
    EXPECT_EQ(status, TESSERA_USAGE);
    return std::string(tessera_last_error());
  };
  const tessera_run_state state{};
  const char* path = nullptr;
  EXPECT_EQ(refusal(tessera_save_checkpoint(nullptr, nullptr, nullptr, &state, 1)), "folder is null");
  EXPECT_EQ(refusal(tessera_save_checkpoint("x", nullptr, nullptr, &state, 1)), "world is null");
  EXPECT_EQ(refusal(tessera_begin_checkpoint("x", nullptr, nullptr, &state, 1, nullptr)), "pending is null");
  tessera_pending_checkpoint* pending = nullptr;
  EXPECT_EQ(refusal(tessera_begin_checkpoint("x", nullptr, nullptr, &state, 1, &pending)), "world is null");
  EXPECT_EQ(refusal(tessera_pending_checkpoint_written(nullptr, nullptr)), "pending is null");
  EXPECT_EQ(refusal(tessera_finish_checkpoint(nullptr, &path)), "pending is null");
  EXPECT_EQ(tessera_pending_checkpoint_destroy(nullptr), TESSERA_OK);
  EXPECT_EQ(refusal(tessera_load_checkpoint(nullptr, nullptr, nullptr, nullptr)), "path is null");
  EXPECT_EQ(refusal(tessera_latest_checkpoint(nullptr, nullptr, &path)), "folder is null");
  EXPECT_EQ(refusal(tessera_latest_checkpoint("x", nullptr, nullptr)), "path is null");
  EXPECT_EQ(refusal(tessera_checkpoint_lock_create(nullptr, nullptr, nullptr)), "lock is null");
}

TEST(CCheckpoint, WithoutRanks) {
  const TemporaryFolder folder;
  const std::string inside = folder.file("run");
  const char* path = "given";
  ASSERT_EQ(tessera_latest_checkpoint(folder.file("none").c_str(), nullptr, &path), TESSERA_OK)
      << tessera_last_error();
  EXPECT_EQ(path, nullptr);
  tessera_checkpoint_lock* lock = nullptr;
  ASSERT_EQ(tessera_checkpoint_lock_create(inside.c_str(), nullptr, &lock), TESSERA_OK)
      << tessera_last_error();
  EXPECT_TRUE(std::filesystem::exists(inside + "/lock"));
  const char* note = nullptr;
  ASSERT_EQ(tessera_checkpoint_lock_note(lock, &note), TESSERA_OK);
  EXPECT_STREQ(note, "");
  EXPECT_EQ(tessera_checkpoint_lock_destroy(lock), TESSERA_OK);
  EXPECT_EQ(tessera_checkpoint_lock_destroy(nullptr), TESSERA_OK);
}

}  // namespace
}  // namespace tessera::testing
