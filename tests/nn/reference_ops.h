// The layers of reference_gpt2.h and reference_llama.h in float64: plain loops over vectors, forward and
// backward.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <functional>
#include <numbers>
#include <vector>

namespace tessera::reference {

using Tensor = std::vector<double>;  // row-major

struct Parameter {
  Tensor value, gradient, m, v;
  bool decays = false;  // matrices do; biases, gains and the like do not
};

// The factor of an element by dropout: 0, or one over the share that is kept. Empty: 1.
using Keep = std::function<double(std::size_t unit, std::size_t sequence, std::size_t matrix, std::size_t row,
                                  std::size_t column)>;

// x [sequences, length, channels] of a unit's matrix; and of a gradient likewise.
inline Tensor dropped(const Keep& keep, std::size_t unit, std::size_t matrix, std::size_t length,
                      std::size_t channels, Tensor x) {
  for (std::size_t i = 0; keep && i < x.size(); ++i) {
    const std::size_t row = i / channels;
    x[i] *= keep(unit, row / length, matrix, row % length, i % channels);
  }
  return x;
}

struct Linear {
  std::size_t in, out;

  // x [rows, in], weight [out, in] -> [rows, out].
  Tensor forward(const Tensor& x, const Tensor& weight, const Tensor& bias) const {
    const std::size_t rows = x.size() / in;
    Tensor y(rows * out);
    for (std::size_t r = 0; r < rows; ++r)
      for (std::size_t o = 0; o < out; ++o) {
        double sum = bias.empty() ? 0.0 : bias[o];
        for (std::size_t i = 0; i < in; ++i) sum += x[r * in + i] * weight[o * in + i];
        y[r * out + o] = sum;
      }
    return y;
  }

  // Adds to the parameters' gradients and returns the input's.
  Tensor backward(const Tensor& x, const Tensor& dy, Parameter& weight, Parameter* bias) const {
    const std::size_t rows = x.size() / in;
    Tensor dx(x.size(), 0.0);
    for (std::size_t r = 0; r < rows; ++r)
      for (std::size_t o = 0; o < out; ++o) {
        const double g = dy[r * out + o];
        if (bias != nullptr) bias->gradient[o] += g;
        for (std::size_t i = 0; i < in; ++i) {
          weight.gradient[o * in + i] += g * x[r * in + i];
          dx[r * in + i] += g * weight.value[o * in + i];
        }
      }
    return dx;
  }
};

struct LayerNorm {
  std::size_t channels;

  // The input, centred and scaled; rstd per row.
  Tensor normalised(const Tensor& x, Tensor* rstd) const {
    const auto n = static_cast<double>(channels);
    Tensor y(x.size());
    rstd->assign(x.size() / channels, 0.0);
    for (std::size_t r = 0; r < rstd->size(); ++r) {
      double mean = 0.0, variance = 0.0;
      for (std::size_t c = 0; c < channels; ++c) mean += x[r * channels + c] / n;
      for (std::size_t c = 0; c < channels; ++c) variance += std::pow(x[r * channels + c] - mean, 2) / n;
      (*rstd)[r] = 1.0 / std::sqrt(variance + 1e-5);
      for (std::size_t c = 0; c < channels; ++c)
        y[r * channels + c] = (x[r * channels + c] - mean) * (*rstd)[r];
    }
    return y;
  }

  Tensor forward(const Tensor& x, const Tensor& gain, const Tensor& bias) const {
    Tensor rstd;
    Tensor y = normalised(x, &rstd);
    for (std::size_t i = 0; i < y.size(); ++i) y[i] = y[i] * gain[i % channels] + bias[i % channels];
    return y;
  }

  Tensor backward(const Tensor& x, const Tensor& dy, Parameter& gain, Parameter& bias) const {
    const auto n = static_cast<double>(channels);
    Tensor rstd;
    const Tensor hat = normalised(x, &rstd);
    Tensor dx(x.size());
    for (std::size_t r = 0; r < rstd.size(); ++r) {
      double sum = 0.0, dot = 0.0;  // of the gradient at the normalised input
      for (std::size_t c = 0; c < channels; ++c) {
        const std::size_t i = r * channels + c;
        gain.gradient[c] += dy[i] * hat[i];
        bias.gradient[c] += dy[i];
        sum += dy[i] * gain.value[c];
        dot += dy[i] * gain.value[c] * hat[i];
      }
      for (std::size_t c = 0; c < channels; ++c) {
        const std::size_t i = r * channels + c;
        dx[i] = rstd[r] * (dy[i] * gain.value[c] - sum / n - hat[i] * dot / n);
      }
    }
    return dx;
  }
};

struct RmsNorm {
  std::size_t channels;
  double epsilon;

  double rstd(const Tensor& x, std::size_t row) const {
    double squares = 0.0;
    for (std::size_t c = 0; c < channels; ++c) squares += x[row * channels + c] * x[row * channels + c];
    return 1.0 / std::sqrt(squares / static_cast<double>(channels) + epsilon);
  }

  Tensor forward(const Tensor& x, const Tensor& gain) const {
    Tensor y(x.size());
    for (std::size_t i = 0; i < y.size(); ++i) y[i] = x[i] * rstd(x, i / channels) * gain[i % channels];
    return y;
  }

  Tensor backward(const Tensor& x, const Tensor& dy, Parameter& gain) const {
    Tensor dx(x.size());
    for (std::size_t r = 0; r < x.size() / channels; ++r) {
      const double scale = rstd(x, r);
      double dot = 0.0;  // of the gradient at the normalised input with that input
      for (std::size_t c = 0; c < channels; ++c) {
        const std::size_t i = r * channels + c;
        gain.gradient[c] += dy[i] * x[i] * scale;
        dot += dy[i] * gain.value[c] * x[i] * scale;
      }
      for (std::size_t c = 0; c < channels; ++c) {
        const std::size_t i = r * channels + c;
        dx[i] = scale * (dy[i] * gain.value[c] - x[i] * scale * dot / static_cast<double>(channels));
      }
    }
    return dx;
  }
};

inline double silu(double x) { return x / (1.0 + std::exp(-x)); }

inline double silu_slope(double x) {
  const double s = 1.0 / (1.0 + std::exp(-x));
  return s + x * s * (1.0 - s);
}

inline double gelu(double x) {
  const double inner = std::sqrt(2.0 / std::numbers::pi) * (x + 0.044715 * x * x * x);
  return 0.5 * x * (1.0 + std::tanh(inner));
}

inline double gelu_slope(double x) {
  const double k = std::sqrt(2.0 / std::numbers::pi);
  const double t = std::tanh(k * (x + 0.044715 * x * x * x));
  return 0.5 * (1.0 + t) + 0.5 * x * (1.0 - t * t) * k * (1.0 + 3.0 * 0.044715 * x * x);
}

inline Tensor sum_of(Tensor a, const Tensor& b) {
  for (std::size_t i = 0; i < a.size(); ++i) a[i] += b[i];
  return a;
}

// Causal attention with every probability written out. With fewer kv_heads than heads, neighbouring heads
// share keys and values.
struct Attention {
  std::size_t sequences, length, channels, heads;
  std::size_t kv_heads = heads;
  Keep keep = {};  // of the probabilities; a matrix is a head
  std::size_t unit = 0;

  double kept(std::size_t sequence, std::size_t head, std::size_t token, std::size_t key) const {
    return keep ? keep(unit, sequence, head, token, key) : 1.0;
  }
  std::size_t head_channels() const { return channels / heads; }
  // Position of query (part 0), key (1) or value (2) of a head at a token; of a key or value, the one that
  // query head `head` reads.
  std::size_t at(std::size_t sequence, std::size_t token, std::size_t part, std::size_t head) const {
    if (part > 0) head = heads + (part - 1) * kv_heads + head / (heads / kv_heads);
    return ((sequence * length + token) * (heads + 2 * kv_heads) + head) * head_channels();
  }
  std::size_t out_at(std::size_t sequence, std::size_t token, std::size_t head) const {
    return (sequence * length + token) * channels + head * head_channels();
  }

  // Probabilities of query `token` over keys 0 to token.
  Tensor probabilities(const Tensor& qkv, std::size_t sequence, std::size_t head, std::size_t token) const {
    Tensor p(token + 1);
    for (std::size_t key = 0; key <= token; ++key) {
      double score = 0.0;
      for (std::size_t d = 0; d < head_channels(); ++d)
        score += qkv[at(sequence, token, 0, head) + d] * qkv[at(sequence, key, 1, head) + d];
      p[key] = score / std::sqrt(static_cast<double>(head_channels()));
    }
    const double most = *std::max_element(p.begin(), p.end());
    double total = 0.0;
    for (double& value : p) {
      value = std::exp(value - most);
      total += value;
    }
    for (double& value : p) value /= total;
    return p;
  }

  template <class Visit>  // visit(sequence, head, token)
  void for_each_query(const Visit& visit) const {
    for (std::size_t sequence = 0; sequence < sequences; ++sequence)
      for (std::size_t head = 0; head < heads; ++head)
        for (std::size_t token = 0; token < length; ++token) visit(sequence, head, token);
  }

  Tensor forward(const Tensor& qkv) const {
    Tensor out(sequences * length * channels, 0.0);
    for_each_query([&](std::size_t sequence, std::size_t head, std::size_t token) {
      const Tensor p = probabilities(qkv, sequence, head, token);
      for (std::size_t key = 0; key <= token; ++key)
        for (std::size_t d = 0; d < head_channels(); ++d)
          out[out_at(sequence, token, head) + d] +=
              kept(sequence, head, token, key) * p[key] * qkv[at(sequence, key, 2, head) + d];
    });
    return out;
  }

  Tensor backward(const Tensor& qkv, const Tensor& dout) const {
    const double scale = 1.0 / std::sqrt(static_cast<double>(head_channels()));
    Tensor dqkv(qkv.size(), 0.0);
    for_each_query([&](std::size_t sequence, std::size_t head, std::size_t token) {
      const Tensor p = probabilities(qkv, sequence, head, token);
      Tensor dp(token + 1, 0.0);
      double mean = 0.0;
      for (std::size_t key = 0; key <= token; ++key) {
        for (std::size_t d = 0; d < head_channels(); ++d) {
          const double g = kept(sequence, head, token, key) * dout[out_at(sequence, token, head) + d];
          dp[key] += g * qkv[at(sequence, key, 2, head) + d];
          dqkv[at(sequence, key, 2, head) + d] += p[key] * g;
        }
        mean += p[key] * dp[key];
      }
      for (std::size_t key = 0; key <= token; ++key) {
        const double dscore = p[key] * (dp[key] - mean) * scale;
        for (std::size_t d = 0; d < head_channels(); ++d) {
          dqkv[at(sequence, token, 0, head) + d] += dscore * qkv[at(sequence, key, 1, head) + d];
          dqkv[at(sequence, key, 1, head) + d] += dscore * qkv[at(sequence, token, 0, head) + d];
        }
      }
    });
    return dqkv;
  }
};

}  // namespace tessera::reference
