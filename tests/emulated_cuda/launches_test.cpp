// What a step gives to the GPU: kernels, products and fillings of memory, by op. A model of gpt2-124m's shape
// has few channels here. Counts depend on sizes only where parameters leave gaps, which are cleared: as in
// gpt2-124m, each has a multiple of 256 bytes.
#include <gtest/gtest.h>

#include <cstdlib>
#include <iostream>
#include <map>
#include <string>

#include "tests/emulated_cuda/emulator.h"
#include "tests/engine/matrix.h"

namespace tessera::testing {
namespace {

using Launches = std::map<std::string, int>;

// Of a step with one microbatch, on one rank. The vocabulary is so large that the cross-entropy's rows are
// long ones, as gpt2's are.
Launches launches_of_a_step(std::int64_t layers) {
  const RunConfig run = {.dtype = DType::bf16, .microbatches = 1, .steps = 1, .device = DeviceType::cuda};
  const Gpt2Config config = {
      .vocabulary = 17001, .context = 16, .layers = layers, .heads = 2, .channels = 128};
  const auto model = std::make_shared<const Model>(make_gpt2(config, run.dtype));
  const TrainerOptions options = trainer_options(run);
  Trainer trainer(make_local_world(1)[0], model, options);
  const auto step = [&](int number) {
    trainer.train_step(1e-3, fetch_samples(0, 1, 1, number, config.vocabulary, options.batch));
  };
  step(0);
  const Launches before = emulated_cuda::launches();
  step(1);
  Launches made = emulated_cuda::launches();
  for (const auto& [op, count] : before) made[op] -= count;
  std::erase_if(made, [](const auto& each) { return each.second == 0; });
  return made;
}

// A block more adds these. TESSERA_SHOW_LAUNCHES=1 shows those of a step of 12 blocks.
TEST(Launches, OfABlock) {
  const Launches expected = {{"matmul", 12},
                             {"adamw_update", 1},
                             {"add", 1},
                             {"add_row_groups", 6},
                             {"attention_backward", 3},
                             {"attention_forward", 1},
                             {"column_sum", 3},
                             {"gelu_backward_bias", 1},
                             {"gelu_forward", 1},
                             {"layer_norm_backward", 2},
                             {"layer_norm_forward", 2},
                             {"sum_of_squares", 1}};
  Launches block = launches_of_a_step(3);
  for (const auto& [op, count] : launches_of_a_step(2)) block[op] -= count;
  std::erase_if(block, [](const auto& each) { return each.second == 0; });
  EXPECT_EQ(block, expected);
  if (std::getenv("TESSERA_SHOW_LAUNCHES") == nullptr) return;
  for (const auto& [op, count] : launches_of_a_step(12)) std::cout << op << " " << count << '\n';
}

}  // namespace
}  // namespace tessera::testing
