// Lion (Chen et al., Symbolic discovery of optimization algorithms, 2023, arXiv 2302.06675, Algorithm 2): the
// sign of a mean of momentum and gradient is the step. See optim/rules.h.
#ifndef TESSERA_OPTIM_RULES_LION_H
#define TESSERA_OPTIM_RULES_LION_H

namespace tessera::rules {

struct LionCoefficients {
  static constexpr const char* kOp = "lion_update";
  static constexpr int kLeastMoments = 1, kMostMoments = 1;

  float beta1 = 0.9f;
  float one_minus_beta1 = 0.1f;
  float beta2 = 0.99f;
  float one_minus_beta2 = 0.01f;
  struct Group {
    float learning_rate = 0.0f;
    float decay = 1.0f;  // 1 - learning_rate * weight_decay
  } group;
};

template <>
struct Rule<LionOptions> {
  using Coefficients = LionCoefficients;
  static constexpr std::string_view kName = "lion";

  static int moments(const LionOptions&) { return 1; }
  static void check(const LionOptions&) {}

  template <class Visit>
  static void visit_fields(LionOptions& o, const Visit& visit) {
    visit("beta1", o.beta1, OptionRange::below_one, "the momentum's part in the sign of the step");
    visit("beta2", o.beta2, OptionRange::below_one, "decay of the momentum, by default 0.99");
    visit("weight_decay", o.weight_decay, OptionRange::non_negative, "decoupled weight decay");
  }

  static Coefficients coefficients(const LionOptions& o, const RuleTerms& terms) {
    return {.beta1 = static_cast<float>(o.beta1),
            .one_minus_beta1 = static_cast<float>(1.0 - o.beta1),
            .beta2 = static_cast<float>(o.beta2),
            .one_minus_beta2 = static_cast<float>(1.0 - o.beta2),
            .group = {.learning_rate = static_cast<float>(terms.learning_rate),
                      .decay = static_cast<float>(1.0 - terms.learning_rate * terms.weight_decay)}};
  }
};

}  // namespace tessera::rules

#endif  // TESSERA_OPTIM_RULES_LION_H

namespace tessera::rules::TESSERA_NUMBERS {

template <int kMoments>
class Body<LionCoefficients, kMoments> {
 public:
  TESSERA_BODY explicit Body(const LionCoefficients& c)
      : beta1_(all(c.beta1)),
        one_minus_beta1_(all(c.one_minus_beta1)),
        beta2_(all(c.beta2)),
        one_minus_beta2_(all(c.one_minus_beta2)),
        minus_rate_(all(-c.group.learning_rate)),
        decay_(all(c.group.decay)) {}

  // The step uses the momentum from before this gradient.
  TESSERA_BODY Number accumulate(Number gradient, Number, Number* moments) const {
    const Number mean = fma(beta1_, moments[0], mul(one_minus_beta1_, gradient));
    moments[0] = fma(beta2_, moments[0], mul(one_minus_beta2_, gradient));
    return sign(mean);
  }
  TESSERA_BODY Number prepare(Number direction, const Number*) const { return direction; }
  TESSERA_BODY Number step(Number direction, Number parameter, const Number*) const {
    return fma(minus_rate_, direction, mul(parameter, decay_));
  }

 private:
  Number beta1_, one_minus_beta1_, beta2_, one_minus_beta2_, minus_rate_, decay_;
};

}  // namespace tessera::rules::TESSERA_NUMBERS
