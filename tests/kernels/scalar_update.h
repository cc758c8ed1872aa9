// An optimizer's update element by element, by its rule's body for one float: what vectors are compared with.
#pragma once

#include <array>

#include "kernels/update_pieces.h"
#include "tests/kernels/support.h"

namespace tessera::kernels::testing {

struct State {
  Tensor master, m, v, parameter;
  bool operator==(const State&) const = default;
};

// An optimizer, a step of it, and the scale of its gradients.
struct UpdateCase {
  OptimizerOptions options;
  rules::RuleTerms terms;
  float gradient_scale = 1.0f;

  int moments() const {
    return std::visit([](const auto& own) { return rules::Rule<std::decay_t<decltype(own)>>::moments(own); },
                      options);
  }
  rules::AnyCoefficients coefficients() const { return rules::coefficients_of(options, terms); }
  OptimizerArguments arguments(const Tensor& gradient, State& s) const {
    return {.numel = gradient.numel(),
            .gradient_type = gradient.type(),
            .gradient = gradient.data(),
            .master = s.master.floats(),
            .moment_count = moments(),
            .moments = {s.m.data(), s.v.data()},
            .moment_type = s.m.type(),
            .parameter_type = s.parameter.type(),
            .parameter = s.parameter.data(),
            .coefficients = coefficients(),
            .gradient_scale = gradient_scale};
  }
};

// kept(moment, k, i): the k-th moment of element i as it is stored.
template <class Kept>
void scalar_update(const UpdateCase& update, const Tensor& gradient, State& s, const Kept& kept) {
  const std::array<Tensor*, 2> moments = {&s.m, &s.v};
  const auto run = [&]<class Coefficients, int kMoments>(const Coefficients& c,
                                                         std::integral_constant<int, kMoments>) {
    const rules::scalar::Body<Coefficients, kMoments> body(c);
    for (std::int64_t i = 0; i < gradient.numel(); ++i) {
      float own[kMostMoments] = {};
      for (int k = 0; k < kMoments; ++k) own[k] = static_cast<float>(moments[k]->get(i));
      float& master = s.master.floats()[i];
      const float begun =
          body.accumulate(static_cast<float>(gradient.get(i)) * update.gradient_scale, master, own);
      for (int k = 0; k < kMoments; ++k) {
        own[k] = kept(own[k], k, i);
        moments[k]->set(i, own[k]);
      }
      master = body.step(body.prepare(begun, own), master, own);
      s.parameter.set(i, static_cast<double>(master));
    }
  };
  std::visit(
      [&](const auto& c) {
        with_moments<std::decay_t<decltype(c)>>(update.moments(), [&](auto count) { run(c, count); });
      },
      update.coefficients());
}
inline void scalar_update(const UpdateCase& update, const Tensor& gradient, State& s) {
  scalar_update(update, gradient, s, [](float moment, int, std::int64_t) { return moment; });
}

}  // namespace tessera::kernels::testing
