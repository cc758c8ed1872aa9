// A GPT-2 small enough for the float64 reference, with the same weights and tokens in both.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "src/nn/initialize.h"
#include "tessera/model.h"
#include "tessera/philox.h"
#include "tests/nn/model_run.h"
#include "tests/nn/reference_gpt2.h"

namespace tessera::testing {

inline constexpr Gpt2Config kSmallGpt2 = {
    .vocabulary = 61, .context = 16, .layers = 2, .heads = 2, .channels = 32};
inline constexpr BatchShape kSmallBatch = {.sequences = 3, .length = 13};  // shorter than the context

// The names of the unit's parts in that pass, in their order.
inline std::vector<std::string> parts_of(const Model& model, int unit, Pass pass) {
  std::vector<std::string> names;
  const UnitGraph graph = model.activations(kSmallBatch, 1).units[static_cast<std::size_t>(unit)];
  for (const PartSpec& part : graph.parts)
    if (part.pass == pass) names.push_back(part.name);
  return names;
}

inline reference::Dims reference_dims(const Gpt2Config& config) {
  const auto dim = [](std::int64_t value) { return static_cast<std::size_t>(value); };
  return {dim(config.vocabulary), dim(config.context), dim(config.layers), dim(config.heads),
          dim(config.channels)};
}

struct TokenBatch {
  std::vector<std::int32_t> inputs, targets;

  // Every fifth target or so is not counted.
  TokenBatch(const BatchShape& shape, std::int64_t vocabulary, std::uint64_t seed) {
    const auto draw = [&](std::uint64_t stream, std::uint64_t index, std::int64_t below) {
      return static_cast<std::int32_t>(uniform(seed, stream, index) * static_cast<double>(below));
    };
    for (std::uint64_t i = 0; i < static_cast<std::uint64_t>(shape.tokens()); ++i) {
      inputs.push_back(draw(1, i, vocabulary));
      targets.push_back(draw(2, i, 5) == 0 ? -1 : draw(3, i, vocabulary));
    }
  }

  reference::Tokens view(const BatchShape& shape) const {
    return {inputs, targets, static_cast<std::size_t>(shape.sequences),
            static_cast<std::size_t>(shape.length)};
  }
};

// Weights larger than at initialisation, and biases and gains that are not 0 and 1, so that every term
// matters.
inline std::vector<float> lively_values(const std::string& name, std::int64_t numel) {
  std::vector<float> values(static_cast<std::size_t>(numel));
  initial_values({Initial::Kind::normal, 0.15}, 42, name, 0, values);
  if (name.ends_with(".gain"))
    for (float& value : values) value += 1.0f;
  return values;
}

class SmallGpt2 {
 public:
  explicit SmallGpt2(DType type, const BatchShape& shape = kSmallBatch, const Gpt2Config& config = kSmallGpt2)
      : batch(shape, config.vocabulary, 7),
        tokens(batch.view(shape)),
        run(make_gpt2(config, type), shape),
        reference(reference_dims(config)) {
    for (const std::string& name : run.names()) {
      run.set_parameter(name, lively_values(name, run.numel(name)));
      const std::vector<float> rounded = run.parameter(name);
      reference.parameters.at(name).value.assign(rounded.begin(), rounded.end());
    }
    load(batch);
  }

  void load(const TokenBatch& source) {
    const std::size_t bytes = source.inputs.size() * sizeof(std::int32_t);
    std::memcpy(run.batch(), source.inputs.data(), bytes);
    std::memcpy(static_cast<char*>(run.batch()) + bytes, source.targets.data(), bytes);
  }

  TokenBatch batch;
  reference::Tokens tokens;
  ModelRun run;
  reference::Gpt2 reference;
};

// |a − b| over |b|, as Euclidean norms.
inline double relative_error(const std::vector<float>& a, const std::vector<double>& b) {
  double difference = 0.0, norm = 0.0;
  for (std::size_t i = 0; i < b.size(); ++i) {
    difference += (a[i] - b[i]) * (a[i] - b[i]);
    norm += b[i] * b[i];
  }
  return std::sqrt(difference / norm);
}

// The gradients that backward left, against the reference's, of a SmallGpt2 or a SmallLlama.
template <class Small>
void expect_gradients(Small& small, double tolerance) {
  for (const std::string& name : small.run.names())
    EXPECT_LT(relative_error(small.run.gradient(name), small.reference.parameters.at(name).gradient),
              tolerance)
        << name;
}

template <class Small>
void expect_agreement(Small& small, double loss_tolerance, double gradient_tolerance) {
  const reference::Loss loss = small.reference.accumulate(small.tokens);
  small.run.forward(StepKind::train);
  EXPECT_EQ(small.run.weight, 0.0);  // all of it is left to backward
  small.run.backward();
  EXPECT_NEAR(small.run.loss, loss.sum, loss_tolerance * loss.sum);
  EXPECT_EQ(small.run.weight, loss.counted);
  expect_gradients(small, gradient_tolerance);
}

}  // namespace tessera::testing
