// An independent GPT-2 in float64: forward, loss, backward, clipping and AdamW, in plain loops over vectors.
// It shares no code with the library, only the names and layouts of parameters, so that agreement means
// something. Nothing here is fast.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "tests/nn/reference_ops.h"

namespace tessera::reference {

struct Loss {
  double sum = 0.0;
  double counted = 0.0;
  double mean() const { return sum / counted; }
};

struct AdamW {
  double learning_rate = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-8;
  double weight_decay = 0.0;
  double max_norm = 0.0;  // 0: no clipping
};

struct Dims {
  std::size_t vocabulary, context, layers, heads, channels;
};

// tokens and targets [sequences, length]; a target of −1 is not counted.
struct Tokens {
  std::span<const std::int32_t> inputs, targets;
  std::size_t sequences, length;
};

class Gpt2 {
 public:
  explicit Gpt2(const Dims& dims) : dims_(dims) {
    const std::size_t c = dims.channels;
    add("embed.token", dims.vocabulary * c, true);
    add("embed.position", dims.context * c, true);
    for (std::size_t n = 0; n < dims.layers; ++n) {
      const std::string block = "block." + std::to_string(n) + ".";
      for (const char* norm : {"norm1", "norm2"}) {
        add(block + norm + ".gain", c, false);
        add(block + norm + ".bias", c, false);
      }
      const auto add_linear = [&](const std::string& name, std::size_t in, std::size_t out) {
        add(block + name + ".weight", in * out, true);
        add(block + name + ".bias", out, false);
      };
      add_linear("attention.qkv", c, 3 * c);
      add_linear("attention.projection", c, c);
      add_linear("mlp.up", c, 4 * c);
      add_linear("mlp.down", 4 * c, c);
    }
    add("head.norm.gain", c, false);
    add("head.norm.bias", c, false);
  }

  // By the library's names; the head's weight is embed.token. Values are zero until somebody sets them.
  std::map<std::string, Parameter> parameters;
  Keep keep, keep_attention;  // of a training step

  Loss evaluate(const Tokens& tokens) { return run(tokens).loss; }

  // [sequences, length, vocabulary].
  Tensor logits(const Tokens& tokens) { return run(tokens).logits; }

  // Adds scale · (gradient of the sum of losses) to every parameter's gradient.
  Loss accumulate(const Tokens& tokens, double scale = 1.0) {
    const Trace trace = run(tokens);
    const LayerNorm norm{dims_.channels};
    Tensor dlogits = trace.logits;
    for (std::size_t r = 0; r < tokens.targets.size(); ++r) {
      const std::span<double> row(dlogits.data() + r * dims_.vocabulary, dims_.vocabulary);
      const bool counted = tokens.targets[r] >= 0;
      for (double& value : row) value = counted ? scale * std::exp(value - trace.log_sum_exp[r]) : 0.0;
      if (counted) row[static_cast<std::size_t>(tokens.targets[r])] -= scale;
    }
    const Linear head{dims_.channels, dims_.vocabulary};
    const Tensor dnormed = head.backward(trace.normed, dlogits, parameters.at("embed.token"), nullptr);
    Tensor dx = norm.backward(trace.x.back(), dnormed, parameters.at("head.norm.gain"),
                              parameters.at("head.norm.bias"));
    for (std::size_t n = dims_.layers; n-- > 0;) dx = block_backward(n, tokens, trace.x[n], dx);
    dx = dropped(keep, 0, 0, tokens.length, dims_.channels, dx);
    Parameter& token_table = parameters.at("embed.token");
    Parameter& position_table = parameters.at("embed.position");
    for (std::size_t i = 0; i < dx.size(); ++i) {
      const std::size_t row = i / dims_.channels, channel = i % dims_.channels;
      token_table.gradient[static_cast<std::size_t>(tokens.inputs[row]) * dims_.channels + channel] += dx[i];
      position_table.gradient[row % tokens.length * dims_.channels + channel] += dx[i];
    }
    return trace.loss;
  }

  void zero_gradients() {
    for (auto& [name, parameter] : parameters)
      std::fill(parameter.gradient.begin(), parameter.gradient.end(), 0.0);
  }

  // One update from the gradients divided by `weight`, which are then zeroed. Returns their norm before
  // clipping.
  double update(const AdamW& options, double weight) {
    double squares = 0.0;
    for (const auto& [name, parameter] : parameters)
      for (double g : parameter.gradient) squares += g / weight * g / weight;
    const double norm = std::sqrt(squares);
    const double clip = options.max_norm > 0.0 ? std::min(1.0, options.max_norm / (norm + 1e-6)) : 1.0;
    ++updates_;
    for (auto& [name, parameter] : parameters) update(parameter, options, clip / weight);
    zero_gradients();
    return norm;
  }

 private:
  struct Trace {
    std::vector<Tensor> x;  // input of every block, then of the head
    Tensor normed, logits, log_sum_exp;
    Loss loss;
  };
  struct BlockTrace {
    Tensor normed1, qkv, attention, middle, normed2, up, activated, out;
  };

  void add(const std::string& name, std::size_t numel, bool decays) {
    const Tensor zero(numel, 0.0);
    parameters[name] = {.value = zero, .gradient = zero, .m = zero, .v = zero, .decays = decays};
  }

  Trace run(const Tokens& tokens) {
    const std::size_t channels = dims_.channels;
    Trace trace;
    Tensor x(tokens.inputs.size() * channels);
    for (std::size_t i = 0; i < x.size(); ++i) {
      const std::size_t row = i / channels, channel = i % channels;
      x[i] = parameters.at("embed.token")
                 .value[static_cast<std::size_t>(tokens.inputs[row]) * channels + channel] +
             parameters.at("embed.position").value[row % tokens.length * channels + channel];
    }
    trace.x.push_back(dropped(keep, 0, 0, tokens.length, channels, x));
    for (std::size_t n = 0; n < dims_.layers; ++n)
      trace.x.push_back(block_forward(n, tokens, trace.x.back()).out);
    trace.normed = LayerNorm{channels}.forward(trace.x.back(), parameters.at("head.norm.gain").value,
                                               parameters.at("head.norm.bias").value);
    trace.logits =
        Linear{channels, dims_.vocabulary}.forward(trace.normed, parameters.at("embed.token").value, {});
    for (std::size_t r = 0; r < tokens.inputs.size(); ++r) {
      const std::span<const double> row(trace.logits.data() + r * dims_.vocabulary, dims_.vocabulary);
      const double most = *std::max_element(row.begin(), row.end());
      double total = 0.0;
      for (double value : row) total += std::exp(value - most);
      trace.log_sum_exp.push_back(most + std::log(total));
      if (tokens.targets[r] < 0) continue;
      trace.loss.sum += trace.log_sum_exp.back() - row[static_cast<std::size_t>(tokens.targets[r])];
      trace.loss.counted += 1.0;
    }
    return trace;
  }

  Parameter& of_block(std::size_t n, const std::string& name) {
    return parameters.at("block." + std::to_string(n) + "." + name);
  }

  Tensor branch(std::size_t n, std::size_t of_two, const Tokens& tokens, const Tensor& x) const {
    return dropped(keep, n + 1, dims_.heads + of_two, tokens.length, dims_.channels, x);
  }

  Attention attention(std::size_t n, const Tokens& tokens) const {
    return {tokens.sequences, tokens.length, dims_.channels, dims_.heads, dims_.heads, keep_attention, n + 1};
  }

  BlockTrace block_forward(std::size_t n, const Tokens& tokens, const Tensor& x) {
    const std::size_t c = dims_.channels;
    const auto value = [&](const std::string& name) -> const Tensor& { return of_block(n, name).value; };
    const auto linear = [&](const std::string& name, std::size_t in, std::size_t out, const Tensor& input) {
      return Linear{in, out}.forward(input, value(name + ".weight"), value(name + ".bias"));
    };
    BlockTrace t;
    t.normed1 = LayerNorm{c}.forward(x, value("norm1.gain"), value("norm1.bias"));
    t.qkv = linear("attention.qkv", c, 3 * c, t.normed1);
    t.attention = attention(n, tokens).forward(t.qkv);
    t.middle = sum_of(branch(n, 0, tokens, linear("attention.projection", c, c, t.attention)), x);
    t.normed2 = LayerNorm{c}.forward(t.middle, value("norm2.gain"), value("norm2.bias"));
    t.up = linear("mlp.up", c, 4 * c, t.normed2);
    for (double u : t.up) t.activated.push_back(gelu(u));
    t.out = sum_of(branch(n, 1, tokens, linear("mlp.down", 4 * c, c, t.activated)), t.middle);
    return t;
  }

  Tensor block_backward(std::size_t n, const Tokens& tokens, const Tensor& x, const Tensor& dout) {
    const std::size_t c = dims_.channels;
    const BlockTrace t = block_forward(n, tokens, x);
    const auto linear = [&](const std::string& name, std::size_t in, std::size_t out, const Tensor& input,
                            const Tensor& dy) {
      return Linear{in, out}.backward(input, dy, of_block(n, name + ".weight"), &of_block(n, name + ".bias"));
    };
    const auto norm = [&](const std::string& name, const Tensor& input, const Tensor& dy) {
      return LayerNorm{c}.backward(input, dy, of_block(n, name + ".gain"), of_block(n, name + ".bias"));
    };
    Tensor dup = linear("mlp.down", 4 * c, c, t.activated, branch(n, 1, tokens, dout));
    for (std::size_t i = 0; i < dup.size(); ++i) dup[i] *= gelu_slope(t.up[i]);
    const Tensor dmiddle = sum_of(norm("norm2", t.middle, linear("mlp.up", c, 4 * c, t.normed2, dup)), dout);
    const Tensor dattention =
        linear("attention.projection", c, c, t.attention, branch(n, 0, tokens, dmiddle));
    const Tensor dqkv = attention(n, tokens).backward(t.qkv, dattention);
    return sum_of(norm("norm1", x, linear("attention.qkv", c, 3 * c, t.normed1, dqkv)), dmiddle);
  }

  void update(Parameter& p, const AdamW& options, double scale) const {
    const double correction1 = 1.0 - std::pow(options.beta1, updates_);
    const double correction2 = 1.0 - std::pow(options.beta2, updates_);
    const double decay = p.decays ? options.weight_decay : 0.0;
    for (std::size_t i = 0; i < p.value.size(); ++i) {
      const double g = p.gradient[i] * scale;
      p.m[i] = options.beta1 * p.m[i] + (1.0 - options.beta1) * g;
      p.v[i] = options.beta2 * p.v[i] + (1.0 - options.beta2) * g * g;
      p.value[i] *= 1.0 - options.learning_rate * decay;
      p.value[i] -= options.learning_rate * (p.m[i] / correction1) /
                    (std::sqrt(p.v[i] / correction2) + options.epsilon);
    }
  }

  Dims dims_;
  double updates_ = 0.0;
};

}  // namespace tessera::reference
