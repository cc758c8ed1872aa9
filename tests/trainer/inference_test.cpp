// A trainer that trains nothing: the losses of one that trains, without gradients and optimizer states, and
// with the weights of any checkpoint.
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <memory>

#include "tessera/checkpoint.h"
#include "tessera/model.h"
#include "tessera/trainer.h"
#include "tests/trainer/temporary_folder.h"

namespace tessera::testing {
namespace {

constexpr int kVocabulary = 29, kLength = 16;

std::shared_ptr<const Model> model_of(DType type, std::int64_t channels = 16) {
  return std::make_shared<const Model>(make_gpt2(
      {.vocabulary = kVocabulary, .context = kLength, .layers = 3, .heads = 2, .channels = channels}, type));
}

TrainerOptions options_on(const Mesh& mesh, int stage, bool trains) {
  TrainerOptions options;
  options.engine.mesh = mesh;
  options.engine.waits.waiting = Waiting::block;
  options.engine.strategy.placements = Placements::of_stage(stage);
  options.engine.optimizer.groups = {{.name = "decay"}, {.name = "no_decay"}};
  options.batch = {.sequences = 1, .length = kLength};
  options.trains = trains;
  return options;
}

void fill(int salt, void* batch) {
  auto* tokens = static_cast<std::int32_t*>(batch);
  for (int k = 0; k < 2 * kLength; ++k) tokens[k] = (k * 7 + salt * 5) % kVocabulary;
}

void on_ranks(const std::shared_ptr<const Model>& model, const TrainerOptions& options,
              const std::function<void(const Communicator& world, Trainer&)>& body) {
  run_local(options.engine.mesh.world(), {.deadline = std::chrono::seconds(20), .waiting = Waiting::block},
            [&](const Communicator& world) {
              Trainer trainer(world, model, options);
              body(world, trainer);
            });
}

double evaluate(Trainer& trainer) {
  return trainer.evaluate([](int, void* batch) { fill(3, batch); }).loss;
}

TEST(Inference, HasTheLossesOfATrainerThatTrains) {
  for (const DType type : {DType::fp32, DType::bf16})
    for (const int stage : {0, 1, 2, 3})
      for (const Mesh& mesh :
           {Mesh{}, Mesh{.shard = 3}, Mesh{.pipeline = 2, .shard = 2}, Mesh{.tensor = 2}}) {
        SCOPED_TRACE(to_string(mesh) + " stage " + std::to_string(stage));
        std::vector<double> losses;
        for (const bool trains : {true, false})
          on_ranks(model_of(type), options_on(mesh, stage, trains),
                   [&](const Communicator& world, Trainer& trainer) {
                     const double loss = evaluate(trainer);
                     if (world.rank() == 0) losses.push_back(loss);
                   });
        EXPECT_EQ(losses[0], losses[1]);
      }
}

// Between steps a rank holds its parameters, and at the peak nothing of what training needs.
TEST(Inference, HoldsNeitherGradientsNorStates) {
  const auto model = model_of(DType::bf16, 64);
  const std::int64_t parameter_bytes = 2 * model->parameter_numel();
  for (const int stage : {0, 3}) {
    const TrainerPlan plan = plan_trainer(*model, options_on({.shard = 2}, stage, false));
    EXPECT_EQ(plan.names, std::vector<std::string>{"evaluate"});
    const SpacePlan& device = plan.memory.space(Space::device);
    EXPECT_EQ(device.at_peak[static_cast<int>(Category::gradients)], 0);
    EXPECT_EQ(device.at_peak[static_cast<int>(Category::optimizer_state)], 0);
    const std::int64_t own = stage == 3 ? parameter_bytes / 2 : parameter_bytes;
    EXPECT_GE(device.at_peak[static_cast<int>(Category::parameters)], own);
    EXPECT_LE(device.at_peak[static_cast<int>(Category::parameters)], own + own / 10) << "padding";
  }
  on_ranks(model, options_on({}, 3, false), [](const Communicator&, Trainer& trainer) {
    EXPECT_THROW((void)trainer.train_step(0.1, [](int, void* batch) { fill(0, batch); }), UsageError);
  });
}

class StoredWeights : public ::testing::Test {
 protected:
  // Saves after three steps; the loss is that of the weights then.
  double train_and_save(DType type, const Mesh& mesh, int stage) {
    double loss = 0;
    on_ranks(model_of(type), options_on(mesh, stage, true), [&](const Communicator& world, Trainer& trainer) {
      for (int step = 0; step < 3; ++step)
        EXPECT_TRUE(trainer.train_step(0.02, [&](int, void* batch) { fill(step, batch); }).applied);
      save_checkpoint(path(), world, trainer.engine(), {.step = 3});
      const double own = evaluate(trainer);
      if (world.rank() == 0) loss = own;
    });
    return loss;
  }
  std::string path() const { return folder_.file("saved"); }

  TemporaryFolder folder_;
};

TEST_F(StoredWeights, AreThoseOfTheRunOnAnyMesh) {
  for (const DType type : {DType::fp32, DType::bf16}) {
    const double saved = train_and_save(type, {.shard = 2}, 2);
    for (const Mesh& mesh : {Mesh{}, Mesh{.shard = 3}, Mesh{.pipeline = 2}, Mesh{.replicate = 2, .shard = 2}})
      for (const int stage : {1, 3})
        on_ranks(model_of(type), options_on(mesh, stage, false),
                 [&](const Communicator& world, Trainer& trainer) {
                   const double before = evaluate(trainer);
                   EXPECT_EQ(load_weights(path(), world, trainer.engine()).step, 3);
                   const double loss = evaluate(trainer);
                   if (world.rank() > 0) return;
                   EXPECT_EQ(loss, saved) << to_string(mesh) << " stage " << stage;
                   EXPECT_NE(loss, before);
                 });
    std::filesystem::remove_all(path());
  }
}

TEST_F(StoredWeights, GoBetweenTensorWidthsAndTypes) {
  const double wide = train_and_save(DType::bf16, {.shard = 2, .tensor = 2}, 3);
  on_ranks(model_of(DType::bf16), options_on({.shard = 3}, 3, false),
           [&](const Communicator& world, Trainer& trainer) {
             load_weights(path(), world, trainer.engine());
             EXPECT_NEAR(evaluate(trainer), wide, 1e-2);
           });
  // In fp32 the masters are read, which differ from what was computed with.
  on_ranks(model_of(DType::fp32), options_on({.shard = 2}, 3, false),
           [&](const Communicator& world, Trainer& trainer) {
             load_weights(path(), world, trainer.engine());
             EXPECT_NEAR(evaluate(trainer), wide, 1e-2);
             std::vector<float> values(64);
             trainer.engine().read(trainer.engine().layout().find("embed.token"), StateKind::parameter, 0,
                                   values);
             EXPECT_TRUE(std::ranges::any_of(values, [](float value) {
               return (std::bit_cast<std::uint32_t>(value) & 0xFFFFu) != 0;
             })) << "they are the rounded ones";
           });
  // A trainer of another optimizer starts from them: its masters are these.
  TrainerOptions other = options_on({.shard = 2}, 1, true);
  other.engine.optimizer.options = SgdOptions{};
  on_ranks(model_of(DType::bf16), other, [&](const Communicator& world, Trainer& trainer) {
    load_weights(path(), world, trainer.engine());
    EXPECT_EQ(trainer.engine().steps_applied(), 0);
    EXPECT_TRUE(trainer.train_step(0.0, [](int, void* batch) { fill(0, batch); }).applied);
    EXPECT_NEAR(evaluate(trainer), wide, 1e-2);
  });
}

TEST_F(StoredWeights, OfAnotherModelOrDamagedAreRefused) {
  (void)train_and_save(DType::bf16, {.shard = 2}, 3);
  on_ranks(model_of(DType::bf16, 32), options_on({.shard = 2}, 3, false),
           [&](const Communicator& world, Trainer& trainer) {
             try {
               load_weights(path(), world, trainer.engine());
               ADD_FAILURE() << "taken";
             } catch (const UsageError& error) {
               EXPECT_NE(std::string(error.what()).find("embed.token [29, 16] there"), std::string::npos)
                   << error.what();
             }
             EXPECT_GT(evaluate(trainer), 0) << "and the engine goes on";
           });
  const std::string file = path() + "/step-00000003/rank-00001.tessera";
  std::fstream bytes(file, std::ios::in | std::ios::out | std::ios::binary);
  const auto size = static_cast<std::streamoff>(std::filesystem::file_size(file));
  for (std::streamoff at = size / 2; at < size; at += 256) bytes.seekp(at).put('\x55');  // also of masters
  bytes.close();
  EXPECT_THROW(on_ranks(model_of(DType::bf16), options_on({.shard = 2}, 3, false),
                        [&](const Communicator& world, Trainer& trainer) {
                          load_weights(path(), world, trainer.engine());
                        }),
               Error);
}

}  // namespace
}  // namespace tessera::testing
