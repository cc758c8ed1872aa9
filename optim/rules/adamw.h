// AdamW and Adam, which share a body: see optim/rules.h.
#ifndef TESSERA_OPTIM_RULES_ADAMW_H
#define TESSERA_OPTIM_RULES_ADAMW_H

namespace tessera::rules {

struct AdamWCoefficients {
  static constexpr const char* kOp = "adamw_update";
  static constexpr int kLeastMoments = 2, kMostMoments = 2;

  float beta1 = 0.9f;
  float one_minus_beta1 = 0.1f;
  float beta2 = 0.999f;
  float one_minus_beta2 = 0.001f;
  float denominator_scale = 1.0f;  // 1 / sqrt(1 - beta2^t)
  float epsilon = 1e-8f;
  struct Group {
    float step = 0.0f;   // learning_rate / (1 - beta1^t)
    float decay = 1.0f;  // 1 - learning_rate * weight_decay, or 1 for Adam
    float l2 = 0.0f;     // weight_decay, or 0 for AdamW
  } group;
};

// What the two rules have in common.
template <class Options>
struct AdamRule {
  using Coefficients = AdamWCoefficients;

  static int moments(const Options&) { return 2; }
  static void check(const Options&) {}

  template <class Visit>
  static void visit_fields(Options& o, const Visit& visit, std::string_view decay) {
    visit("beta1", o.beta1, OptionRange::below_one, "decay of the first moment");
    visit("beta2", o.beta2, OptionRange::below_one, "decay of the second moment");
    visit("epsilon", o.epsilon, OptionRange::positive, "added to the root of the second moment");
    visit("weight_decay", o.weight_decay, OptionRange::non_negative, decay);
  }

  static Coefficients coefficients(const Options& o, const RuleTerms& terms, bool decoupled) {
    const double steps = static_cast<double>(terms.step);
    const double correction1 = 1.0 - std::pow(o.beta1, steps);
    const double correction2 = 1.0 - std::pow(o.beta2, steps);
    const double decoupled_decay = decoupled ? terms.weight_decay : 0.0;
    return {.beta1 = static_cast<float>(o.beta1),
            .one_minus_beta1 = static_cast<float>(1.0 - o.beta1),
            .beta2 = static_cast<float>(o.beta2),
            .one_minus_beta2 = static_cast<float>(1.0 - o.beta2),
            .denominator_scale = static_cast<float>(1.0 / std::sqrt(correction2)),
            .epsilon = static_cast<float>(o.epsilon),
            .group = {.step = static_cast<float>(terms.learning_rate / correction1),
                      .decay = static_cast<float>(1.0 - terms.learning_rate * decoupled_decay),
                      .l2 = static_cast<float>(decoupled ? 0.0 : terms.weight_decay)}};
  }
};

template <>
struct Rule<AdamWOptions> : AdamRule<AdamWOptions> {
  static constexpr std::string_view kName = "adamw";

  template <class Visit>
  static void visit_fields(AdamWOptions& o, const Visit& visit) {
    AdamRule::visit_fields(o, visit, "decoupled weight decay");
  }
  static Coefficients coefficients(const AdamWOptions& o, const RuleTerms& terms) {
    return AdamRule::coefficients(o, terms, true);
  }
};

template <>
struct Rule<AdamOptions> : AdamRule<AdamOptions> {
  static constexpr std::string_view kName = "adam";

  template <class Visit>
  static void visit_fields(AdamOptions& o, const Visit& visit) {
    AdamRule::visit_fields(o, visit, "weight decay by L2");
  }
  static Coefficients coefficients(const AdamOptions& o, const RuleTerms& terms) {
    return AdamRule::coefficients(o, terms, false);
  }
};

}  // namespace tessera::rules

#endif  // TESSERA_OPTIM_RULES_ADAMW_H

namespace tessera::rules::TESSERA_NUMBERS {

template <int kMoments>
class Body<AdamWCoefficients, kMoments> {
 public:
  TESSERA_BODY explicit Body(const AdamWCoefficients& c)
      : l2_(all(c.group.l2)),
        beta1_(all(c.beta1)),
        one_minus_beta1_(all(c.one_minus_beta1)),
        beta2_(all(c.beta2)),
        one_minus_beta2_(all(c.one_minus_beta2)),
        minus_step_(all(-c.group.step)),
        denominator_scale_(all(c.denominator_scale)),
        epsilon_(all(c.epsilon)),
        decay_(all(c.group.decay)) {}

  TESSERA_BODY Number accumulate(Number gradient, Number parameter, Number* moments) const {
    const Number g = fma(l2_, parameter, gradient);
    moments[0] = fma(beta1_, moments[0], mul(one_minus_beta1_, g));
    moments[1] = fma(beta2_, moments[1], mul(mul(one_minus_beta2_, g), g));
    return g;
  }
  TESSERA_BODY Number prepare(Number, const Number* moments) const { return sqrt(moments[1]); }
  TESSERA_BODY Number step(Number root, Number parameter, const Number* moments) const {
    const Number denominator = fma(root, denominator_scale_, epsilon_);
    return fma(minus_step_, div(moments[0], denominator), mul(parameter, decay_));
  }

 private:
  Number l2_, beta1_, one_minus_beta1_, beta2_, one_minus_beta2_;
  Number minus_step_, denominator_scale_, epsilon_, decay_;
};

}  // namespace tessera::rules::TESSERA_NUMBERS
