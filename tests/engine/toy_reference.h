// The toy model's training in float64, one element after the other: what the engine must arrive at.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "tessera/layout.h"
#include "tests/engine/toy.h"

namespace tessera::testing {

class ToyReference {
 public:
  struct Step {
    double weight = 0, loss = 0, norm = 0;
    std::vector<double> parameter_norms;  // by ParameterId
  };

  ToyReference(DType type, Optimizer optimizer, GradientClip clip = {})
      : layout_(toy_units(type), 1), optimizer_(std::move(optimizer)), clip_(clip) {
    for (ParameterId id = 0; id < layout_.parameters(); ++id) {
      if (layout_.place(id).home != id || !layout_.parameter(id).trainable) continue;
      for (std::int64_t k = 0; k < layout_.place(id).numel; ++k) {
        elements_.push_back({id, k});
        master_.push_back(toy_initial(id, k));
      }
    }
    moment1_.resize(master_.size());
    moment2_.resize(master_.size());
  }

  Step step(int step, int microbatches, int world, double learning_rate) {
    Step result;
    double loss = 0;
    for (int rank = 0; rank < world; ++rank) {
      result.weight += toy_weight(rank);
      loss += toy_loss(rank, step);
    }
    result.loss = loss / result.weight;
    std::vector<double> gradients;
    IdVector<double> squares(layout_.parameters());
    for (const auto& [parameter, index] : elements_) {
      gradients.push_back(gradient(parameter, index, step, microbatches, world) / result.weight);
      squares[parameter] += gradients.back() * gradients.back();
    }
    double total = 0;
    for (double square : squares) total += square;
    result.norm = std::sqrt(total);
    for (ParameterId id = 0; id < layout_.parameters(); ++id)
      result.parameter_norms.push_back(std::sqrt(squares[layout_.place(id).home]));
    const double factor = clip_.max_norm > 0 ? std::min(1.0, clip_.max_norm / (result.norm + 1e-6)) : 1.0;
    for (std::size_t k = 0; k < elements_.size(); ++k)
      update(k, gradients[k] * factor, step + 1, learning_rate);
    return result;
  }

  const std::vector<double>& master() const { return master_; }
  std::vector<double> moment1() const { return optimizer_.moments() > 0 ? moment1_ : std::vector<double>{}; }
  std::vector<double> moment2() const { return optimizer_.moments() > 1 ? moment2_ : std::vector<double>{}; }

  // What compute must see of these masters: rounded to each parameter's type, frozen ones as they began.
  std::vector<float> rounded(const std::vector<float>& master) const {
    std::vector<float> all;
    std::size_t at = 0;
    for (ParameterId id = 0; id < layout_.parameters(); ++id) {
      if (layout_.place(id).home != id) continue;
      for (std::int64_t k = 0; k < layout_.place(id).numel; ++k) {
        const ParameterSpec& parameter = layout_.parameter(id);
        const float value = parameter.trainable ? master[at++] : toy_initial(id, k);
        std::uint32_t bits = 0;
        float back = 0;
        kernels::cast({}, 1, DType::fp32, &value, parameter.dtype, &bits);
        kernels::cast({}, 1, parameter.dtype, &bits, DType::fp32, &back);
        all.push_back(back);
      }
    }
    return all;
  }

 private:
  double gradient(ParameterId home, std::int64_t index, int step, int microbatches, int world) const {
    double sum = 0;
    for (ParameterId id = 0; id < layout_.parameters(); ++id)
      if (layout_.place(id).home == home)
        for (int microbatch = 0; microbatch < microbatches; ++microbatch)
          for (int rank = 0; rank < world; ++rank) sum += toy_gradient({id, index, step, microbatch, rank});
    return sum;
  }

  void update(std::size_t k, double gradient, int step, double scheduled) {
    const int group = layout_.parameter(elements_[k].parameter).group;
    const double rate = optimizer_.learning_rate(group, scheduled);
    const double decay = optimizer_.weight_decay(group);
    double& value = master_[k];
    if (const auto* sgd = std::get_if<SgdOptions>(&optimizer_.options)) {
      moment1_[k] = sgd->momentum * moment1_[k] + gradient + decay * value;
      value -= rate * moment1_[k];
      return;
    }
    if (const auto* lion = std::get_if<LionOptions>(&optimizer_.options)) {
      const double mean = lion->beta1 * moment1_[k] + (1 - lion->beta1) * gradient;
      value -= rate * ((mean > 0) - (mean < 0) + decay * value);
      moment1_[k] = lion->beta2 * moment1_[k] + (1 - lion->beta2) * gradient;
      return;
    }
    const auto& adamw = std::get<AdamWOptions>(optimizer_.options);
    value *= 1 - rate * decay;
    moment1_[k] = adamw.beta1 * moment1_[k] + (1 - adamw.beta1) * gradient;
    moment2_[k] = adamw.beta2 * moment2_[k] + (1 - adamw.beta2) * gradient * gradient;
    const double m = moment1_[k] / (1 - std::pow(adamw.beta1, step));
    const double v = moment2_[k] / (1 - std::pow(adamw.beta2, step));
    value -= rate * m / (std::sqrt(v) + adamw.epsilon);
  }

  Layout layout_;
  Optimizer optimizer_;
  GradientClip clip_;
  std::vector<Element> elements_;
  std::vector<double> master_, moment1_, moment2_;
};

}  // namespace tessera::testing
