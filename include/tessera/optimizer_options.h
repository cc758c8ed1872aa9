// The optimizers that exist, and the options of each. Plain values. optim/rules.h says what each optimizer
// computes; optimizer.h has the functions on these options.
#pragma once

#include <cstdint>
#include <variant>

namespace tessera {

// AdamW (Loshchilov and Hutter, Decoupled weight decay regularization, ICLR 2019), in PyTorch's order: decay
// by 1 − learning_rate · weight_decay, then the step. State: two moments.
struct AdamWOptions {
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-8;       // added to √v, with v after its bias correction
  double weight_decay = 0.01;  // decoupled
};

// Adam (Kingma and Ba, ICLR 2015). State: two moments.
struct AdamOptions {
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-8;
  double weight_decay = 0.0;  // L2: weight_decay · parameter is added to the gradient
};

// SGD with momentum (no dampening): b = momentum · b + g; parameter −= learning_rate · b, or with Nesterov
// (Sutskever et al., ICML 2013) learning_rate · (g + momentum · b). State: one moment, or none if momentum is
// 0.
struct SgdOptions {
  double momentum = 0.0;
  bool nesterov = false;      // requires momentum above 0
  double weight_decay = 0.0;  // L2, as for Adam
};

// Lion (Chen et al., Symbolic discovery of optimization algorithms, 2023): m is the momentum;
// parameter −= learning_rate · (sign(beta1 · m + (1 − beta1) · g) + weight_decay · parameter), then
// m = beta2 · m + (1 − beta2) · g. Its authors use a learning rate 3 to 10 times smaller than AdamW's, and a
// weight decay larger by the same factor. State: one moment.
struct LionOptions {
  double beta1 = 0.9;
  double beta2 = 0.99;
  double weight_decay = 0.0;  // decoupled
};

// An optimizer's number in the C ABI is its index here. Add a new one at the end.
using OptimizerOptions = std::variant<AdamWOptions, AdamOptions, SgdOptions, LionOptions>;

// The numbers that a field of the options may have.
enum class OptionRange : std::uint8_t {
  below_one,     // from 0 to below 1
  positive,      // above 0 in fp32, and finite
  non_negative,  // 0 or more, and finite in fp32
};

}  // namespace tessera
