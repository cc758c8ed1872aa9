// A vocabulary of odd size makes no product of a step slow: cuBLASLt takes other kernels where a matrix, or
// one of its rows, begins at less than a multiple of 16 bytes.
#include <gtest/gtest.h>

#include "tests/emulated_cuda/gpu_services.h"
#include "tests/engine/matrix.h"

namespace tessera::testing {
namespace {

constexpr std::int64_t kVocabulary = 509;

Model model_of(const RunConfig& run) {
  Gpt2Config gpt2 = small_gpt();
  LlamaConfig llama = small_llama();
  gpt2.vocabulary = llama.vocabulary = kVocabulary;
  llama.hidden = 96;  // what two ranks have of it is aligned
  gpt2.logits_bytes = llama.logits_bytes = run.logits_bytes;
  gpt2.sequence_parallel = llama.sequence_parallel = run.sequence_parallel;
  return run.family == Family::gpt2 ? make_gpt2(gpt2, run.dtype) : make_llama(llama, run.dtype);
}

// One step and a loss, in chunks of few rows.
void train(const RunConfig& run) {
  const auto model = std::make_shared<const Model>(model_of(run));
  run_local(ranks_of(run), {}, [&](Communicator host) {
    TrainerOptions options = trainer_options(run);
    Trainer trainer(placed(host, options), model, options);
    EXPECT_TRUE(trainer.train_step(1e-3, fetch_for(run, host.rank(), 0, *model, options.batch)).applied);
  });
}

TEST(AnOddVocabulary, LeavesEveryProductOfAStepAligned) {
  emulated_cuda::forget_products();
  for (const Family family : {Family::gpt2, Family::llama})
    for (const DType dtype : {DType::fp32, DType::bf16})
      for (const std::int64_t rows : {0, 5}) {
        const RunConfig run = {.family = family,
                               .stage = 3,
                               .dtype = dtype,
                               .device = DeviceType::cuda,
                               .logits_bytes = rows * 4 * kVocabulary};
        train(run);
        const emulated_cuda::NotedProducts noted = emulated_cuda::noted_products();
        EXPECT_GE(noted.least_alignment, 16) << to_string(run) << ": " << noted.least_aligned;
      }
  EXPECT_GT(emulated_cuda::noted_products().count, 8 * 20);
}

TEST(AnOddVocabulary, ThatRanksSplitLeavesEveryProductOfAStepAligned) {
  emulated_cuda::forget_products();
  for (const bool sequence_parallel : {true, false}) {
    const RunConfig run = {.family = Family::llama,
                           .tensor = 2,
                           .dtype = DType::bf16,
                           .device = DeviceType::cuda,
                           .logits_bytes = std::int64_t{5} * 4 * kVocabulary,
                           .sequence_parallel = sequence_parallel};
    train(run);
    const emulated_cuda::NotedProducts noted = emulated_cuda::noted_products();
    EXPECT_GE(noted.least_alignment, 16) << to_string(run) << ": " << noted.least_aligned;
  }
  EXPECT_GT(emulated_cuda::noted_products().count, 0);
}

// A row of logits belongs to the caller and has as many elements as the vocabulary.
TEST(AnOddVocabulary, LeavesGenerationAligned) {
  emulated_cuda::forget_products();
  for (const DType dtype : {DType::fp32, DType::bf16}) {
    const RunConfig run = {.family = Family::llama, .dtype = dtype, .device = DeviceType::cuda};
    TrainerOptions options = trainer_options(run);
    options.generation = true;
    Trainer trainer(make_local_world(1)[0], std::make_shared<const Model>(model_of(run)), options);
    const std::vector<std::int32_t> prompt = {3, 1, 4, 1, 5, 9, 2, 6};
    EXPECT_EQ(trainer.logits(prompt).size(), static_cast<std::size_t>(kVocabulary));
  }
  const emulated_cuda::NotedProducts noted = emulated_cuda::noted_products();
  EXPECT_GT(noted.count, 0);
  EXPECT_GE(noted.least_alignment, 16) << noted.least_aligned;
}

}  // namespace
}  // namespace tessera::testing
