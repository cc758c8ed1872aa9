// Models whose blocks multiply in fp8 against the float64 reference, and what they refuse.
#include <gtest/gtest.h>

#include "tests/nn/llama_fixture.h"
#include "tests/refusal.h"

namespace tessera::testing {
namespace {

constexpr BatchShape kBatch = {.sequences = 4, .length = 16};

Gpt2Config gpt2_in_fp8() {
  Gpt2Config config = kSmallGpt2;
  config.fp8_products = true;
  return config;
}

LlamaConfig llama_in_fp8() {
  LlamaConfig config = kSmallLlama;
  config.hidden = 48;
  config.fp8_products = true;
  return config;
}

// An element is rounded by 2^-4 of itself at most, by 0.026 in the mean. A gradient has gone through several
// products, each of two such operands, and those of norms are sums in which much cancels.
TEST(Fp8Models, AreNearTheReference) {
  SmallGpt2 gpt2(DType::bf16, kBatch, gpt2_in_fp8());
  expect_agreement(gpt2, 0.02, 0.25);
  SmallLlama llama(DType::bf16, kBatch, llama_in_fp8());
  expect_agreement(llama, 0.02, 0.25);
}

// Each layer rounds: without that its gradient is nearer by far.
TEST(Fp8Models, AreFurtherThanBf16InEveryLayer) {
  const auto errors_of = [](bool fp8) {
    Gpt2Config config = gpt2_in_fp8();
    config.fp8_products = fp8;
    SmallGpt2 small(DType::bf16, kBatch, config);
    small.reference.accumulate(small.tokens);
    small.run.forward(StepKind::train);
    small.run.backward();
    std::vector<double> errors;
    for (const char* layer : {"attention.qkv", "attention.projection", "mlp.up", "mlp.down"}) {
      const std::string name = std::string("block.1.") + layer + ".weight";
      errors.push_back(
          relative_error(small.run.gradient(name), small.reference.parameters.at(name).gradient));
    }
    return errors;
  };
  const std::vector<double> fp8 = errors_of(true), bf16 = errors_of(false);
  for (std::size_t layer = 0; layer < fp8.size(); ++layer) EXPECT_GT(fp8[layer], 5 * bf16[layer]) << layer;
}

TEST(Fp8Models, SayWhatTheyComputeAndWhichGpuTheyNeed) {
  const Model fp8 = make_gpt2(gpt2_in_fp8(), DType::bf16), bf16 = make_gpt2(kSmallGpt2, DType::bf16);
  EXPECT_EQ(fp8.modules[1]->numerics(kBatch, 1),
            bf16.modules[1]->numerics(kBatch, 1) + ", products in fp8 by tiles of 128");
  EXPECT_EQ(fp8.modules[0]->numerics(kBatch, 1), bf16.modules[0]->numerics(kBatch, 1));
  EXPECT_EQ(fp8.modules[3]->numerics(kBatch, 1), bf16.modules[3]->numerics(kBatch, 1));
  EXPECT_EQ(fp8.least_gpu, (ComputeCapability{9, 0}));
  EXPECT_EQ(bf16.least_gpu, ComputeCapability());
  EXPECT_GT((ComputeCapability{9, 0}), (ComputeCapability{8, 9}));
}

// Its products have few rows: they stay bf16, whose workspace is another.
TEST(Fp8Models, GenerateInBf16) {
  const Model fp8 = make_gpt2(gpt2_in_fp8(), DType::bf16), bf16 = make_gpt2(kSmallGpt2, DType::bf16);
  for (const std::int64_t rows : {1, 6, 16}) {
    const BatchShape shape = {.sequences = 1, .length = rows, .cached = 16};
    const auto workspaces = [&](const Model& model) {
      const ActivationSpec activations = model.activations(shape, 1);
      std::vector<std::int64_t> bytes;
      for (const PartSpec& part : activations.units[1].parts) bytes.push_back(part.workspace_bytes);
      return bytes;
    };
    EXPECT_EQ(workspaces(fp8), workspaces(bf16));
  }
}

TEST(Fp8Models, RefuseWhatHasNoProductInFp8) {
  expect_words(refusal([] { make_gpt2(gpt2_in_fp8(), DType::fp32); }),
               {"gpt2: fp8_products (precision.products) is set", "the type is fp32"});
  const auto refused = [](const Model& model, const BatchShape& batch) {
    return refusal([&] { model.activations(batch, 1); });
  };
  const Model gpt2 = make_gpt2(gpt2_in_fp8(), DType::bf16);
  expect_words(refused(gpt2, {.sequences = 3, .length = 13}),
               {"gpt2: fp8_products", "'attention.qkv' has 39 tokens", "a multiple of 16"});
  LlamaConfig narrow = llama_in_fp8();
  narrow.hidden = 44;
  expect_words(refused(make_llama(narrow, DType::bf16), kBatch), {"llama", "'mlp.gate_up' has 88 outputs"});
  EXPECT_EQ(refused(make_llama(llama_in_fp8(), DType::bf16), kBatch), "accepted");
}

// What each rank has of a layer counts, and each chunk's rows.
TEST(Fp8Models, RefuseSharesOfRanksAndChunks) {
  const auto refused = [](const Target& target) {
    const Model model = make_gpt2(gpt2_in_fp8(), DType::bf16);
    return refusal([&] { model.activations(kBatch, target); });
  };
  EXPECT_EQ(refused({1, DeviceType::cpu, 2}), "accepted");
  EXPECT_EQ(refused({1, DeviceType::cpu, 2, 4}), "accepted");
  expect_words(refused({1, DeviceType::cpu, 2, 8}),
               {"has 8 tokens on a rank (mesh.tensor 2, exchange_chunks 8)"});
  Gpt2Config config = gpt2_in_fp8();
  config.channels = 16;
  const Model narrow = make_gpt2(config, DType::bf16);
  expect_words(refusal([&] {
                 narrow.activations(kBatch, {1, DeviceType::cpu, 2});
               }),
               {"'attention.qkv' has 24 outputs on a rank (mesh.tensor 2, exchange_chunks 1)"});
}

}  // namespace
}  // namespace tessera::testing
