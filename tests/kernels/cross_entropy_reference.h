// Cross-entropy of a language model's head in float64, forward and backward.
#pragma once

#include "tests/kernels/support.h"

namespace tessera::kernels::testing {

struct CrossEntropyReference {
  CrossEntropyShape s;
  std::vector<std::int32_t> targets;

  static std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }

  // softmax(logits) of one row, and its loss.
  Doubles probabilities(const Doubles& x, const Doubles& w, std::int64_t row, double* loss) const {
    Doubles p(at(s.vocabulary));
    double maximum = -1e300, sum = 0.0;
    for (std::int64_t v = 0; v < s.vocabulary; ++v) {
      for (std::int64_t c = 0; c < s.channels; ++c)
        p[at(v)] += x[at(row * s.channels + c)] * w[at(v * s.channels + c)];
      maximum = std::max(maximum, p[at(v)]);
    }
    const double target = targets[at(row)] < 0 ? 0.0 : p[at(targets[at(row)])];
    for (double& value : p) sum += value = std::exp(value - maximum);
    for (double& value : p) value /= sum;
    *loss = targets[at(row)] < 0 ? 0.0 : std::log(sum) + maximum - target;
    return p;
  }
  Doubles losses(const Doubles& x, const Doubles& w) const {
    Doubles result(at(s.rows));
    for (std::int64_t row = 0; row < s.rows; ++row) probabilities(x, w, row, &result[at(row)]);
    return result;
  }
  double loss(const Doubles& x, const Doubles& w) const {
    double sum = 0.0;
    for (const double value : losses(x, w)) sum += value;
    return sum;
  }
  struct Gradients {
    Doubles x, w;
  };
  Gradients backward(const Doubles& x, const Doubles& w, double scale) const {
    Gradients d = {Doubles(x.size()), Doubles(w.size())};
    for (std::int64_t row = 0; row < s.rows; ++row) {
      if (targets[at(row)] < 0) continue;
      double ignored = 0.0;
      Doubles p = probabilities(x, w, row, &ignored);
      p[at(targets[at(row)])] -= 1.0;
      for (std::int64_t v = 0; v < s.vocabulary; ++v)
        for (std::int64_t c = 0; c < s.channels; ++c) {
          d.x[at(row * s.channels + c)] += scale * p[at(v)] * w[at(v * s.channels + c)];
          d.w[at(v * s.channels + c)] += scale * p[at(v)] * x[at(row * s.channels + c)];
        }
    }
    return d;
  }
};

inline CrossEntropyReference make_cross_entropy_reference(const CrossEntropyShape& s, Random& random) {
  CrossEntropyReference r = {s, random.tokens(s.rows, s.vocabulary)};
  for (std::int64_t row = 2; row < s.rows; row += 5) r.targets[static_cast<std::size_t>(row)] = -1;
  return r;
}

}  // namespace tessera::kernels::testing
