// Optimizers as rules. A rule has everything in which one optimizer differs from another. What they share is
// written once, for all rules: the pass over a shard with its types, tails, groups, gate, threads and rounded
// moments (kernels/cpu/optimizer.cpp, kernels/cuda/optimizer.cu), and what goes through options field by
// field (comparison of ranks, configuration, C ABI, checks). Headers only; they own no memory and lie below
// the kernels, which compile each rule's body.
//
// To add an optimizer, write
//  - its options and its row, the last alternative of OptimizerOptions, in tessera/optimizer_options.h;
//  - its file in optim/rules, and a line for that in optim/rules/all.h;
//  - its number in tessera/c_api.h, and its tests.
//
// The file has three parts; optim/rules/sgd.h is a short example.
//
// 1. A struct of coefficients: what a call computes with, each rounded once from float64 to fp32.
//  - kOp: the kernel's name, for messages.
//  - kLeastMoments, kMostMoments: how many moments an element may have, from 0 to 2. They are kept in fp32 or
//    bf16, as the caller chooses.
//  - `group`, a struct Group: those coefficients that differ between parameter groups.
//
// 2. Rule<Options>, on the host.
//  - Coefficients: the struct above.
//  - kName: the optimizer's name in lower case. Configurations and checkpoints have it.
//  - moments(options): how many moments an element has.
//  - visit_fields(options, visit): lists every field of the options, here and nowhere else. It calls
//    visit(name, number, range, meaning), or visit(name, switch, meaning). One is the number weight_decay.
//  - check(options): UsageError for what no field's range tells.
//  - coefficients(options, terms): for one step and one parameter group.
//
// 3. Body<Coefficients, kMoments>, made of coefficients: the update of one Number, in three calls.
//  - accumulate(gradient, parameter, moments): updates the moments. The gradient is unscaled and clipped.
//    Returns what prepare() needs besides the moments.
//  - prepare(accumulated, moments): is given the moments as they are kept; those in bf16 have been rounded.
//    Returns what step() needs.
//  - step(prepared, parameter, moments): returns the new master parameter. What is slow and follows a slow
//    prepare() belongs here: the CPU works on other elements in between.
//
// A Number is a float on a GPU, and 16 of them on the CPU, where the file is compiled once for each
// instruction set. A body is made of mul, div, sqrt, fma and sign, and of all(c), the Number of a
// coefficient. Each gives an exact or a correctly rounded result, so that every backend gives the same bits.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <type_traits>
#include <variant>

#include "kernels/host_device.h"
#include "tessera/error.h"
#include "tessera/optimizer_options.h"

namespace tessera::rules {

// The values of an update's step and parameter group.
struct RuleTerms {
  double learning_rate = 0.0;  // the group's
  double weight_decay = 0.0;   // the group's
  std::int64_t step = 1;       // updates applied with this one, from 1
};

template <class Options>
struct Rule;

// One float, on a GPU and in tests.
namespace scalar {

using Number = float;

TESSERA_HOST_DEVICE inline Number all(float coefficient) { return coefficient; }
TESSERA_HOST_DEVICE inline Number mul(Number a, Number b) { return a * b; }
TESSERA_HOST_DEVICE inline Number div(Number a, Number b) { return a / b; }
TESSERA_HOST_DEVICE inline Number sqrt(Number a) { return std::sqrt(a); }
// -1 or 1; a zero or NaN is returned as it is.
TESSERA_HOST_DEVICE inline Number sign(Number a) { return std::fabs(a) > 0.0f ? std::copysign(1.0f, a) : a; }
TESSERA_HOST_DEVICE inline Number fma(Number a, Number b, Number c) { return std::fma(a, b, c); }

template <class Coefficients, int kMoments>
class Body;

}  // namespace scalar
}  // namespace tessera::rules

#define TESSERA_NUMBERS scalar
#define TESSERA_BODY TESSERA_HOST_DEVICE inline
#include "optim/rules/all.h"
#undef TESSERA_NUMBERS
#undef TESSERA_BODY

namespace tessera::rules {

template <class Options>
struct EachCoefficients;
template <class... Options>
struct EachCoefficients<std::variant<Options...>> {
  using Variant = std::variant<typename Rule<Options>::Coefficients...>;

  // The index of `Own` among the options.
  template <class Own>
  static constexpr std::size_t place() {
    std::size_t place = 0;
    bool found = false;
    ((found = found || std::is_same_v<Own, Options>, place += found ? 0 : 1), ...);
    return place;
  }
};

// The coefficients of any rule, in the order of OptimizerOptions. Two rules may share a type of coefficients,
// and then a body.
using AnyCoefficients = EachCoefficients<OptimizerOptions>::Variant;

inline AnyCoefficients coefficients_of(const OptimizerOptions& options, const RuleTerms& terms) {
  return std::visit(
      [&](const auto& own) {
        using Options = std::decay_t<decltype(own)>;
        return AnyCoefficients(std::in_place_index<EachCoefficients<OptimizerOptions>::place<Options>()>,
                               Rule<Options>::coefficients(own, terms));
      },
      options);
}

}  // namespace tessera::rules
