// The MLP against a float64 loss of its own, whose gradients are finite differences.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "tests/nn/gpt2_fixture.h"

namespace tessera::testing {
namespace {

constexpr std::int64_t kRows = 11;

struct Samples {
  std::vector<float> inputs;  // [kRows, inputs]
  std::vector<std::int32_t> classes;

  explicit Samples(const MlpConfig& config) {
    for (std::uint64_t i = 0; i < static_cast<std::uint64_t>(kRows * config.inputs); ++i)
      inputs.push_back(from_bf16(to_bf16(static_cast<float>(normal(3, 1, i)))));  // so that the cast is exact
    for (std::uint64_t i = 0; i < static_cast<std::uint64_t>(kRows); ++i)
      classes.push_back(i == 4 ? -1
                               : static_cast<std::int32_t>(i) % static_cast<std::int32_t>(config.classes));
  }
};

using Values = std::map<std::string, reference::Tensor>;

reference::Tensor reference_logits(const MlpConfig& config, const Samples& samples, const Values& values) {
  reference::Tensor x(samples.inputs.begin(), samples.inputs.end());
  auto in = static_cast<std::size_t>(config.inputs);
  for (std::size_t layer = 0; layer < config.hidden.size(); ++layer) {
    const std::string name = "layer." + std::to_string(layer);
    const auto out = static_cast<std::size_t>(config.hidden[layer]);
    x = reference::Linear{in, out}.forward(x, values.at(name + ".weight"), values.at(name + ".bias"));
    for (double& value : x) value = reference::gelu(value);
    in = out;
  }
  return reference::Linear{in, static_cast<std::size_t>(config.classes)}.forward(
      x, values.at("layer." + std::to_string(config.hidden.size()) + ".weight"), {});
}

double reference_loss(const MlpConfig& config, const Samples& samples, const Values& values) {
  const reference::Tensor logits = reference_logits(config, samples, values);
  const auto classes = static_cast<std::size_t>(config.classes);
  double loss = 0.0;
  for (std::size_t row = 0; row < samples.classes.size(); ++row) {
    if (samples.classes[row] < 0) continue;
    double total = 0.0;
    for (std::size_t c = 0; c < classes; ++c) total += std::exp(logits[row * classes + c]);
    loss += std::log(total) - logits[row * classes + static_cast<std::size_t>(samples.classes[row])];
  }
  return loss;
}

reference::Tensor finite_differences(const MlpConfig& config, const Samples& samples, Values values,
                                     const std::string& name) {
  reference::Tensor gradient;
  for (double& element : values.at(name)) {
    const double value = element, step = 1e-5;
    element = value + step;
    const double above = reference_loss(config, samples, values);
    element = value - step;
    gradient.push_back((above - reference_loss(config, samples, values)) / (2.0 * step));
    element = value;
  }
  return gradient;
}

class MlpGradients : public ::testing::TestWithParam<std::tuple<DType, std::vector<std::int64_t>>> {
 protected:
  MlpGradients() : run(make_mlp(config, type), {.sequences = kRows, .length = 1}) {
    for (const std::string& name : run.names()) {
      run.set_parameter(name, lively_values(name, run.numel(name)));
      const std::vector<float> rounded = run.parameter(name);
      values[name].assign(rounded.begin(), rounded.end());
    }
    std::memcpy(run.batch(), samples.inputs.data(), samples.inputs.size() * 4);
    std::memcpy(static_cast<char*>(run.batch()) + run.spec().batch_bytes - kRows * 4, samples.classes.data(),
                kRows * 4);
  }

  DType type = std::get<0>(GetParam());
  MlpConfig config = {.inputs = 6, .hidden = std::get<1>(GetParam()), .classes = 3};
  Samples samples{config};
  ModelRun run;
  Values values;
};

TEST_P(MlpGradients, AgreeWithFiniteDifferences) {
  run.forward(StepKind::train);
  EXPECT_EQ(run.loss, 0.0);
  run.backward();
  const double loss = reference_loss(config, samples, values);
  EXPECT_NEAR(run.loss, loss, (type == DType::fp32 ? 1e-6 : 1e-2) * loss);
  EXPECT_EQ(run.weight, kRows - 1.0);
  for (const std::string& name : run.names())
    EXPECT_LT(relative_error(run.gradient(name), finite_differences(config, samples, values, name)),
              type == DType::fp32 ? 3e-6 : 3e-2)
        << name;
}

TEST_P(MlpGradients, AddWhereBetaIsOne) {
  const std::vector<std::string> names = run.names();
  for (const std::string& name : names)
    run.set_gradient(name, std::vector<float>(static_cast<std::size_t>(run.numel(name)), 1.0f));
  run.forward(StepKind::train);
  run.backward({names.begin(), names.end()});
  for (const std::string& name : names) {
    reference::Tensor expected = finite_differences(config, samples, values, name);
    for (double& value : expected) value += 1.0;
    EXPECT_LT(relative_error(run.gradient(name), expected), type == DType::fp32 ? 3e-6 : 3e-2) << name;
  }
}

TEST_P(MlpGradients, RecomputeSavesTheSameBits) { expect_recompute_repeats(run); }

TEST_P(MlpGradients, EvaluationGivesLossAndLogits) {
  std::vector<float> logits(3);
  run.logits = logits.data();
  run.logits_row = 9;
  run.forward(StepKind::evaluate);
  const double tolerance = type == DType::fp32 ? 1e-6 : 2e-2;
  const double loss = reference_loss(config, samples, values);
  EXPECT_NEAR(run.loss, loss, tolerance * loss);
  EXPECT_EQ(run.weight, kRows - 1.0);
  const reference::Tensor expected = reference_logits(config, samples, values);
  EXPECT_LT(relative_error(logits, {expected.begin() + 27, expected.begin() + 30}), tolerance);
}

INSTANTIATE_TEST_SUITE_P(Shapes, MlpGradients,
                         ::testing::Combine(::testing::Values(DType::fp32, DType::bf16),
                                            ::testing::Values(std::vector<std::int64_t>{},
                                                              std::vector<std::int64_t>{5},
                                                              std::vector<std::int64_t>{8, 4, 7})));

}  // namespace
}  // namespace tessera::testing
