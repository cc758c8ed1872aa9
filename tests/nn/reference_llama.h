// An independent Llama in float64: forward, loss and backward in plain loops over vectors. It shares no code
// with the library, only the names and layouts of parameters. Nothing here is fast.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "tests/nn/reference_gpt2.h"
#include "tests/nn/reference_ops.h"

namespace tessera::reference {

struct LlamaDims {
  std::size_t vocabulary, layers, heads, kv_heads, channels, hidden;
  double rope_theta, norm_epsilon;
  bool tied;
};

class Llama {
 public:
  explicit Llama(const LlamaDims& dims) : dims_(dims), norm_{dims.channels, dims.norm_epsilon} {
    const std::size_t c = dims.channels;
    add("embed.token", dims.vocabulary * c);
    for (std::size_t n = 0; n < dims.layers; ++n) {
      const std::string block = "block." + std::to_string(n) + ".";
      add(block + "norm1.gain", c);
      add(block + "attention.qkv.weight", c * qkv_channels());
      add(block + "attention.projection.weight", c * c);
      add(block + "norm2.gain", c);
      add(block + "mlp.gate_up.weight", c * 2 * dims.hidden);
      add(block + "mlp.down.weight", dims.hidden * c);
    }
    add("head.norm.gain", c);
    if (!dims.tied) add("head.weight", dims.vocabulary * c);
  }

  // By the library's names. Values are zero until somebody sets them.
  std::map<std::string, Parameter> parameters;
  Keep keep, keep_attention;  // of a training step

  Loss evaluate(const Tokens& tokens) { return run(tokens).loss; }

  // [sequences, length, vocabulary].
  Tensor logits(const Tokens& tokens) { return run(tokens).logits; }

  // Adds scale · (gradient of the sum of losses) to every parameter's gradient.
  Loss accumulate(const Tokens& tokens, double scale = 1.0) {
    const Trace trace = run(tokens);
    Tensor dlogits = trace.logits;
    for (std::size_t r = 0; r < tokens.targets.size(); ++r) {
      const std::span<double> row(dlogits.data() + r * dims_.vocabulary, dims_.vocabulary);
      const bool counted = tokens.targets[r] >= 0;
      for (double& value : row) value = counted ? scale * std::exp(value - trace.log_sum_exp[r]) : 0.0;
      if (counted) row[static_cast<std::size_t>(tokens.targets[r])] -= scale;
    }
    const Tensor dnormed =
        Linear{dims_.channels, dims_.vocabulary}.backward(trace.normed, dlogits, head_weight(), nullptr);
    Tensor dx = norm_.backward(trace.x.back(), dnormed, parameters.at("head.norm.gain"));
    for (std::size_t n = dims_.layers; n-- > 0;) dx = block_backward(n, tokens, trace.x[n], dx);
    dx = dropped(keep, 0, 0, tokens.length, dims_.channels, dx);
    Parameter& table = parameters.at("embed.token");
    for (std::size_t i = 0; i < dx.size(); ++i)
      table.gradient[static_cast<std::size_t>(tokens.inputs[i / dims_.channels]) * dims_.channels +
                     i % dims_.channels] += dx[i];
    return trace.loss;
  }

 private:
  struct Trace {
    std::vector<Tensor> x;  // input of every block, then of the head
    Tensor normed, logits, log_sum_exp;
    Loss loss;
  };
  struct BlockTrace {
    Tensor normed1, qkv, attention, middle, normed2, gate_up, activated, out;
  };

  std::size_t qkv_channels() const {
    return dims_.channels / dims_.heads * (dims_.heads + 2 * dims_.kv_heads);
  }

  void add(const std::string& name, std::size_t numel) {
    const Tensor zero(numel, 0.0);
    parameters[name] = {.value = zero, .gradient = zero, .m = {}, .v = {}};
  }

  Parameter& head_weight() { return parameters.at(dims_.tied ? "embed.token" : "head.weight"); }

  Trace run(const Tokens& tokens) {
    const std::size_t channels = dims_.channels;
    Trace trace;
    Tensor x(tokens.inputs.size() * channels);
    for (std::size_t i = 0; i < x.size(); ++i)
      x[i] = parameters.at("embed.token")
                 .value[static_cast<std::size_t>(tokens.inputs[i / channels]) * channels + i % channels];
    trace.x.push_back(dropped(keep, 0, 0, tokens.length, channels, x));
    for (std::size_t n = 0; n < dims_.layers; ++n)
      trace.x.push_back(block_forward(n, tokens, trace.x.back()).out);
    trace.normed = norm_.forward(trace.x.back(), parameters.at("head.norm.gain").value);
    trace.logits = Linear{channels, dims_.vocabulary}.forward(trace.normed, head_weight().value, {});
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
    return {tokens.sequences, tokens.length,  dims_.channels, dims_.heads,
            dims_.kv_heads,   keep_attention, n + 1};
  }

  // Queries and keys turned by `direction` times their token's angles.
  Tensor rotated(Tensor qkv, const Tokens& tokens, double direction) const {
    const std::size_t width = dims_.channels / dims_.heads, half = width / 2;
    for (std::size_t row = 0; row < tokens.inputs.size(); ++row)
      for (std::size_t head = 0; head < dims_.heads + dims_.kv_heads; ++head)
        for (std::size_t i = 0; i < half; ++i) {
          const double exponent = 2.0 * static_cast<double>(i) / static_cast<double>(width);
          const double angle =
              direction * static_cast<double>(row % tokens.length) * std::pow(dims_.rope_theta, -exponent);
          double& a = qkv[row * qkv_channels() + head * width + i];
          double& b = qkv[row * qkv_channels() + head * width + half + i];
          const double turned = a * std::cos(angle) - b * std::sin(angle);
          b = b * std::cos(angle) + a * std::sin(angle);
          a = turned;
        }
    return qkv;
  }

  Tensor activated(const Tensor& gate_up) const {
    Tensor y;
    for (std::size_t i = 0; i < gate_up.size() / 2; ++i) {
      const std::size_t gate = i / dims_.hidden * 2 * dims_.hidden + i % dims_.hidden;
      y.push_back(silu(gate_up[gate]) * gate_up[gate + dims_.hidden]);
    }
    return y;
  }

  Tensor activated_backward(const Tensor& gate_up, const Tensor& dy) const {
    Tensor d(gate_up.size());
    for (std::size_t i = 0; i < dy.size(); ++i) {
      const std::size_t gate = i / dims_.hidden * 2 * dims_.hidden + i % dims_.hidden;
      d[gate] = dy[i] * gate_up[gate + dims_.hidden] * silu_slope(gate_up[gate]);
      d[gate + dims_.hidden] = dy[i] * silu(gate_up[gate]);
    }
    return d;
  }

  BlockTrace block_forward(std::size_t n, const Tokens& tokens, const Tensor& x) {
    const std::size_t c = dims_.channels;
    const auto value = [&](const std::string& name) -> const Tensor& { return of_block(n, name).value; };
    const auto linear = [&](const std::string& name, std::size_t in, std::size_t out, const Tensor& input) {
      return Linear{in, out}.forward(input, value(name + ".weight"), {});
    };
    BlockTrace t;
    t.normed1 = norm_.forward(x, value("norm1.gain"));
    t.qkv = rotated(linear("attention.qkv", c, qkv_channels(), t.normed1), tokens, 1.0);
    t.attention = attention(n, tokens).forward(t.qkv);
    t.middle = sum_of(branch(n, 0, tokens, linear("attention.projection", c, c, t.attention)), x);
    t.normed2 = norm_.forward(t.middle, value("norm2.gain"));
    t.gate_up = linear("mlp.gate_up", c, 2 * dims_.hidden, t.normed2);
    t.activated = activated(t.gate_up);
    t.out = sum_of(branch(n, 1, tokens, linear("mlp.down", dims_.hidden, c, t.activated)), t.middle);
    return t;
  }

  Tensor block_backward(std::size_t n, const Tokens& tokens, const Tensor& x, const Tensor& dout) {
    const std::size_t c = dims_.channels;
    const BlockTrace t = block_forward(n, tokens, x);
    const auto linear = [&](const std::string& name, std::size_t in, std::size_t out, const Tensor& input,
                            const Tensor& dy) {
      return Linear{in, out}.backward(input, dy, of_block(n, name + ".weight"), nullptr);
    };
    const Tensor dgate_up = activated_backward(
        t.gate_up, linear("mlp.down", dims_.hidden, c, t.activated, branch(n, 1, tokens, dout)));
    const Tensor dnormed2 = linear("mlp.gate_up", c, 2 * dims_.hidden, t.normed2, dgate_up);
    const Tensor dmiddle = sum_of(norm_.backward(t.middle, dnormed2, of_block(n, "norm2.gain")), dout);
    const Tensor dattention =
        linear("attention.projection", c, c, t.attention, branch(n, 0, tokens, dmiddle));
    const Tensor dqkv = rotated(attention(n, tokens).backward(t.qkv, dattention), tokens, -1.0);
    const Tensor dnormed1 = linear("attention.qkv", c, qkv_channels(), t.normed1, dqkv);
    return sum_of(norm_.backward(x, dnormed1, of_block(n, "norm1.gain")), dmiddle);
  }

  LlamaDims dims_;
  RmsNorm norm_;
};

}  // namespace tessera::reference
