// Attention in float64, forward and backward, as attention.h says it, on the values that a kernel is given.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "kernels/attention.h"
#include "tests/kernels/dropout_reference.h"
#include "tests/kernels/support.h"

namespace tessera::kernels::testing {

inline AttentionShape bf16_shape(std::int64_t batch, std::int64_t sequence, std::int64_t heads,
                                 std::int64_t kv_heads, std::int64_t head_channels) {
  return {.batch = batch,
          .sequence = sequence,
          .channels = heads * head_channels,
          .heads = heads,
          .type = DType::bf16,
          .kv_heads = kv_heads};
}

struct AttentionReference {
  AttentionShape s;

  std::int64_t head_channels() const { return s.channels / s.heads; }
  std::int64_t kv_heads() const { return s.kv_heads > 0 ? s.kv_heads : s.heads; }
  // part 0: query, 1: key, 2: value, of the key and value head that query head `head` reads; of output-shaped
  // tensors there is only part 0 and `parts` is 1.
  std::size_t index(std::int64_t item, std::int64_t row, std::int64_t head, std::int64_t channel, int part,
                    int parts) const {
    const std::int64_t width = parts == 1 ? s.heads : s.heads + 2 * kv_heads();
    if (part > 0) head = s.heads + (part - 1) * kv_heads() + head / (s.heads / kv_heads());
    return static_cast<std::size_t>(((item * s.sequence + row) * width + head) * head_channels() + channel);
  }

  // The probabilities of one row and, by way of `log_sum_exp`, their normaliser.
  Doubles weights(const Doubles& qkv, std::int64_t item, std::int64_t head, std::int64_t row,
                  double* log_sum_exp = nullptr) const {
    Doubles p;
    double maximum = -1e300, sum = 0.0;
    for (std::int64_t key = 0; key <= row; ++key) {
      double score = 0.0;
      for (std::int64_t c = 0; c < head_channels(); ++c)
        score += qkv[index(item, row, head, c, 0, 3)] * qkv[index(item, key, head, c, 1, 3)];
      p.push_back(score / std::sqrt(static_cast<double>(head_channels())));
      maximum = std::max(maximum, p.back());
    }
    for (double& value : p) sum += value = std::exp(value - maximum);
    for (double& value : p) value /= sum;
    if (log_sum_exp != nullptr) *log_sum_exp = maximum + std::log(sum);
    return p;
  }

  // What dropout makes of a probability.
  double kept(std::int64_t item, std::int64_t head, std::int64_t row, std::size_t key) const {
    return static_cast<double>(dropout_factor(s.dropout, item, head, row, static_cast<std::int64_t>(key)));
  }

  template <class Function>
  void for_each_row(Function&& function) const {
    for (std::int64_t item = 0; item < s.batch; ++item)
      for (std::int64_t head = 0; head < s.heads; ++head)
        for (std::int64_t row = 0; row < s.sequence; ++row) function(item, head, row);
  }

  Doubles forward(const Doubles& qkv, Doubles* log_sum_exp = nullptr) const {
    Doubles output(static_cast<std::size_t>(s.batch * s.sequence * s.channels));
    for_each_row([&](std::int64_t item, std::int64_t head, std::int64_t row) {
      double normaliser = 0.0;
      const Doubles p = weights(qkv, item, head, row, &normaliser);
      if (log_sum_exp != nullptr) log_sum_exp->push_back(normaliser);
      for (std::int64_t key = 0; key <= row; ++key)
        for (std::int64_t c = 0; c < head_channels(); ++c)
          output[index(item, row, head, c, 0, 1)] += kept(item, head, row, static_cast<std::size_t>(key)) *
                                                     p[static_cast<std::size_t>(key)] *
                                                     qkv[index(item, key, head, c, 2, 3)];
    });
    return output;
  }

  Doubles backward(const Doubles& qkv, const Doubles& dy) const {
    Doubles gradient(qkv.size());
    const double scale = 1.0 / std::sqrt(static_cast<double>(head_channels()));
    for_each_row([&](std::int64_t item, std::int64_t head, std::int64_t row) {
      const Doubles p = weights(qkv, item, head, row);
      Doubles dp(p.size());
      double delta = 0.0;
      for (std::size_t key = 0; key < p.size(); ++key) {
        for (std::int64_t c = 0; c < head_channels(); ++c) {
          const double dout = dy[index(item, row, head, c, 0, 1)];
          const double factor = kept(item, head, row, key);
          dp[key] += factor * dout * qkv[index(item, static_cast<std::int64_t>(key), head, c, 2, 3)];
          gradient[index(item, static_cast<std::int64_t>(key), head, c, 2, 3)] += factor * p[key] * dout;
        }
        delta += p[key] * dp[key];
      }
      for (std::size_t key = 0; key < p.size(); ++key)
        for (std::int64_t c = 0; c < head_channels(); ++c) {
          const double ds = p[key] * (dp[key] - delta) * scale;
          const std::size_t q = index(item, row, head, c, 0, 3);
          const std::size_t k = index(item, static_cast<std::int64_t>(key), head, c, 1, 3);
          gradient[q] += ds * qkv[k];
          gradient[k] += ds * qkv[q];
        }
    });
    return gradient;
  }
};

}  // namespace tessera::kernels::testing
