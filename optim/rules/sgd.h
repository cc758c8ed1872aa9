// SGD with (Nesterov) momentum, no dampening; the first step starts from momentum 0. See optim/rules.h.
#ifndef TESSERA_OPTIM_RULES_SGD_H
#define TESSERA_OPTIM_RULES_SGD_H

namespace tessera::rules {

struct SgdCoefficients {
  static constexpr const char* kOp = "sgd_update";
  static constexpr int kLeastMoments = 0, kMostMoments = 1;

  float momentum = 0.0f;
  bool nesterov = false;
  struct Group {
    float learning_rate = 0.0f;
    float weight_decay = 0.0f;  // weight_decay * parameter is added to the gradient
  } group;
};

template <>
struct Rule<SgdOptions> {
  using Coefficients = SgdCoefficients;
  static constexpr std::string_view kName = "sgd";

  static int moments(const SgdOptions& o) { return o.momentum > 0.0 ? 1 : 0; }

  template <class Visit>
  static void visit_fields(SgdOptions& o, const Visit& visit) {
    visit("momentum", o.momentum, OptionRange::below_one, "the momentum");
    visit("nesterov", o.nesterov, "Nesterov's momentum");
    visit("weight_decay", o.weight_decay, OptionRange::non_negative, "weight decay by L2");
  }
  static void check(const SgdOptions& o) {
    if (o.nesterov && !(o.momentum > 0.0))
      throw UsageError("sgd with nesterov: momentum = 0 must be above 0");
  }

  static Coefficients coefficients(const SgdOptions& o, const RuleTerms& terms) {
    return {.momentum = static_cast<float>(o.momentum),
            .nesterov = o.nesterov,
            .group = {.learning_rate = static_cast<float>(terms.learning_rate),
                      .weight_decay = static_cast<float>(terms.weight_decay)}};
  }
};

}  // namespace tessera::rules

#endif  // TESSERA_OPTIM_RULES_SGD_H

namespace tessera::rules::TESSERA_NUMBERS {

template <int kMoments>
class Body<SgdCoefficients, kMoments> {
 public:
  TESSERA_BODY explicit Body(const SgdCoefficients& c)
      : weight_decay_(all(c.group.weight_decay)),
        momentum_(all(c.momentum)),
        minus_rate_(all(-c.group.learning_rate)),
        nesterov_(c.nesterov) {}

  TESSERA_BODY Number accumulate(Number gradient, Number parameter, Number* moments) const {
    const Number g = fma(weight_decay_, parameter, gradient);
    if constexpr (kMoments > 0) moments[0] = fma(momentum_, moments[0], g);
    return g;
  }
  TESSERA_BODY Number prepare(Number g, const Number* moments) const {
    if constexpr (kMoments == 0) return g;
    return nesterov_ ? fma(momentum_, moments[0], g) : moments[0];
  }
  TESSERA_BODY Number step(Number direction, Number parameter, const Number*) const {
    return fma(minus_rate_, direction, parameter);
  }

 private:
  Number weight_decay_, momentum_, minus_rate_;
  bool nesterov_;
};

}  // namespace tessera::rules::TESSERA_NUMBERS
