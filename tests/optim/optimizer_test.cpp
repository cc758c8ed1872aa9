#include "tessera/optimizer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <string>
#include <tuple>
#include <vector>

#include "kernels/gate_math.h"
#include "optim/update.h"
#include "tessera/error.h"
#include "tessera/optimizer_fields.h"
#include "tessera/philox.h"
#include "tests/refusal.h"

namespace tessera {
namespace {

using testing::refusal;

// Master, moments and a gradient that changes with the step, all of one numel.
struct State {
  explicit State(std::size_t numel) : master(numel), m(numel), v(numel), gradient(numel) {
    for (std::size_t i = 0; i < numel; ++i) master[i] = static_cast<float>(normal(1, 0, i));
  }
  void draw_gradient(int step) {
    for (std::size_t i = 0; i < gradient.size(); ++i)
      gradient[i] = static_cast<float>(normal(2, static_cast<std::uint64_t>(step), i));
  }
  UpdateArguments run(std::size_t begin, std::size_t end) {
    return {.numel = static_cast<std::int64_t>(end - begin),
            .gradient = gradient.data() + begin,
            .master = master.data() + begin,
            .moments = {m.data() + begin, v.data() + begin}};
  }
  std::vector<float> master, m, v, gradient;
};

// The published formulas in float64, one element.
struct Reference {
  double p = 0, m = 0, v = 0;

  void adam(const AdamWOptions& o, bool decoupled, double g, double rate, int step) {
    if (decoupled)
      p -= rate * o.weight_decay * p;
    else
      g += o.weight_decay * p;
    m = o.beta1 * m + (1 - o.beta1) * g;
    v = o.beta2 * v + (1 - o.beta2) * g * g;
    p -= rate * (m / (1 - std::pow(o.beta1, step))) /
         (std::sqrt(v / (1 - std::pow(o.beta2, step))) + o.epsilon);
  }
  void sgd(const SgdOptions& o, double g, double rate) {
    g += o.weight_decay * p;
    m = o.momentum * m + g;
    p -= rate * (o.nesterov ? g + o.momentum * m : m);
  }
};

// Ten updates by `optimizer` and by `reference`, whose gradients carry a factor 1/4 that update() is told of.
void expect_follows(
    const Optimizer& optimizer,
    const std::function<void(Reference&, double gradient, double rate, int step)>& reference) {
  constexpr std::size_t kNumel = 1003;
  optimizer.check();
  State state(kNumel);
  std::vector<Reference> expected(kNumel);
  for (std::size_t i = 0; i < kNumel; ++i) expected[i].p = state.master[i];
  for (int step = 1; step <= 10; ++step) {
    const double rate = 0.01 * step;
    state.draw_gradient(step);
    UpdateArguments run = state.run(0, kNumel);
    run.learning_rate = rate;
    run.step = step;
    run.gradient_scale = 0.25;
    update(optimizer, run);
    for (std::size_t i = 0; i < kNumel; ++i) reference(expected[i], 0.25 * state.gradient[i], rate, step);
  }
  for (std::size_t i = 0; i < kNumel; ++i)
    ASSERT_NEAR(state.master[i], expected[i].p, 3e-6) << "element " << i;
}

TEST(optimizer, adamw_follows_its_formula) {
  const AdamWOptions options{.beta1 = 0.8, .beta2 = 0.95, .weight_decay = 0.1};
  expect_follows({.options = options}, [&](Reference& r, double g, double rate, int step) {
    r.adam(options, true, g, rate, step);
  });
}

TEST(optimizer, adam_adds_the_decay_to_the_gradient) {
  const AdamOptions options{.beta1 = 0.8, .beta2 = 0.95, .weight_decay = 0.1};
  const AdamWOptions same{.beta1 = 0.8, .beta2 = 0.95, .weight_decay = 0.1};
  expect_follows({.options = options},
                 [&](Reference& r, double g, double rate, int step) { r.adam(same, false, g, rate, step); });
}

TEST(optimizer, sgd_follows_its_formula) {
  for (const SgdOptions& options :
       {SgdOptions{}, SgdOptions{.weight_decay = 0.1}, SgdOptions{.momentum = 0.9},
        SgdOptions{.momentum = 0.9, .nesterov = true, .weight_decay = 0.01}})
    expect_follows({.options = options},
                   [&](Reference& r, double g, double rate, int) { r.sgd(options, g, rate); });
}

TEST(optimizer, lion_follows_its_formula) {
  for (const LionOptions& options :
       {LionOptions{}, LionOptions{.beta1 = 0.95, .beta2 = 0.98, .weight_decay = 0.3}})
    expect_follows({.options = options}, [&](Reference& r, double g, double rate, int) {
      const double mean = options.beta1 * r.m + (1 - options.beta1) * g;
      r.p -= rate * ((mean > 0) - (mean < 0) + options.weight_decay * r.p);
      r.m = options.beta2 * r.m + (1 - options.beta2) * g;
    });
}

// By gradients of 0 and NaN, closed gates, tails and vectors alike; what is only written begins as NaN.
TEST(optimizer, lion_steps_by_no_more_than_the_sign) {
  for (const DType moments : {DType::fp32, DType::bf16}) {
    constexpr std::size_t kNumel = 37;
    const Optimizer optimizer{.options = LionOptions{}, .moment_type = moments};
    State state(kNumel);
    const std::vector<float> before = state.master;
    std::ranges::fill(state.gradient, 0.0F);
    for (const std::size_t i : {3, 20, 36}) state.gradient[i] = NAN;
    for (const std::size_t i : {4, 21, 35}) state.gradient[i] = -1e-38F;
    for (const std::size_t i : {5, 22, 34}) state.gradient[i] = 1e30F;
    std::vector<std::uint16_t> parameter(kNumel, 0xFFFF);
    UpdateArguments run = state.run(0, kNumel);
    run.moments[1] = nullptr;
    run.learning_rate = 0.25;
    run.parameter_type = DType::bf16;
    run.parameter = parameter.data();
    const kernels::UpdateGate closed{.apply = 0};
    run.gate = &closed;
    update(optimizer, run);
    EXPECT_EQ(state.master, before);
    EXPECT_EQ(parameter, std::vector<std::uint16_t>(kNumel, 0xFFFF));
    run.gate = nullptr;
    update(optimizer, run);
    for (std::size_t i = 0; i < kNumel; ++i) {
      const float g = state.gradient[i];
      if (std::isnan(g)) {
        EXPECT_TRUE(std::isnan(state.master[i])) << i;
      } else {
        EXPECT_EQ(state.master[i], before[i] - 0.25F * static_cast<float>((g > 0) - (g < 0))) << i;
      }
      const auto bits = static_cast<std::uint32_t>(parameter[i]) << 16;
      EXPECT_EQ(std::isnan(std::bit_cast<float>(bits)), std::isnan(g)) << i;
    }
  }
}

TEST(optimizer, groups_change_decay_and_learning_rate) {
  const AdamWOptions options{.weight_decay = 0.1};
  const Optimizer optimizer{
      .options = options,
      .groups = {{}, {.name = "no decay", .weight_decay = 0.0}, {.learning_rate_factor = 0.0}}};
  EXPECT_EQ(optimizer.weight_decay(0), 0.1);
  EXPECT_EQ(optimizer.weight_decay(1), 0.0);
  EXPECT_EQ(optimizer.learning_rate(0, 0.5), 0.5);
  EXPECT_EQ(optimizer.learning_rate(2, 0.5), 0.0);
  std::vector<float> masters;
  for (int group = 0; group < 3; ++group) {
    State state(1);
    state.master[0] = 2.0F;
    UpdateArguments run = state.run(0, 1);  // the gradient is 0: only the decay acts
    run.group = group;
    run.learning_rate = 0.5;
    update(optimizer, run);
    masters.push_back(state.master[0]);
  }
  EXPECT_EQ(masters, (std::vector<float>{2.0F * 0.95F, 2.0F, 2.0F}));
}

TEST(optimizer, runs_in_one_call_are_updated_as_in_calls_of_their_own) {
  const std::vector<ParameterGroup> groups = {
      {}, {.name = "no decay", .weight_decay = 0.0}, {.name = "slow", .learning_rate_factor = 0.1}};
  std::vector<UpdateRun> runs = {{64, 0}, {1, 1}, {0, 2}, {300, 2}, {128, 1}, {24, 0}};
  std::size_t numel = 517;
  for (int r = 0; r < 40; ++r) {  // more than the kernel takes at once
    runs.push_back({8 + r % 3, r % 3});
    numel += static_cast<std::size_t>(runs.back().numel);
  }
  for (const OptimizerOptions& options : {OptimizerOptions(AdamWOptions{.weight_decay = 0.1}),
                                          OptimizerOptions(AdamOptions{.weight_decay = 0.1}),
                                          OptimizerOptions(SgdOptions{.momentum = 0.9, .weight_decay = 0.1}),
                                          OptimizerOptions(LionOptions{.weight_decay = 0.1})}) {
    const Optimizer optimizer{.options = options, .groups = groups};
    State together(numel), apart(numel);
    for (int step = 1; step <= 3; ++step) {
      together.draw_gradient(step);
      apart.draw_gradient(step);
      UpdateArguments all = together.run(0, numel);
      all.learning_rate = 0.1;
      all.step = step;
      all.runs = runs;
      update(optimizer, all);
      std::size_t begin = 0;
      for (const UpdateRun& run : runs) {
        const std::size_t end = begin + static_cast<std::size_t>(run.numel);
        UpdateArguments one = apart.run(begin, end);
        one.learning_rate = 0.1;
        one.step = step;
        one.group = run.group;
        update(optimizer, one);
        begin = end;
      }
    }
    EXPECT_EQ(together.master, apart.master);
    EXPECT_EQ(together.m, apart.m);
    EXPECT_EQ(together.v, apart.v);
  }
}

TEST(optimizer, any_cut_into_runs_gives_the_same_bits) {
  constexpr std::size_t kNumel = 517;
  State whole(kNumel), cut(kNumel);
  const Optimizer optimizer;
  for (int step = 1; step <= 3; ++step) {
    whole.draw_gradient(step);
    cut.draw_gradient(step);
    UpdateArguments run = whole.run(0, kNumel);
    run.learning_rate = 0.1;
    run.step = step;
    run.threads = 2;
    update(optimizer, run);
    for (std::size_t begin = 0, length = 1; begin < kNumel; begin += length, length = length * 2 + 1) {
      run = cut.run(begin, std::min(kNumel, begin + length));
      run.learning_rate = 0.1;
      run.step = step;
      update(optimizer, run);
    }
  }
  EXPECT_EQ(whole.master, cut.master);
  EXPECT_EQ(whole.m, cut.m);
  EXPECT_EQ(whole.v, cut.v);
}

// Moments in bf16 are rounded by where an element is in all, so that a cut changes nothing; every step and
// key rounds them in another way.
TEST(optimizer, moments_in_bf16_are_rounded_alike_by_any_cut) {
  constexpr std::size_t kNumel = 517;
  enum Runs { kNone, kOfTheFlat, kWithAPlace };
  const auto updated = [&](bool cut, std::uint64_t key, std::int64_t first_step, Runs runs) {
    State state(kNumel);
    std::vector<std::uint16_t> m(kNumel), v(kNumel);
    const Optimizer optimizer{.groups = {{}, {}}, .moment_type = DType::bf16};
    for (int step = 0; step < 3; ++step) {
      state.draw_gradient(step);
      for (std::size_t begin = 0, length = cut ? 1 : kNumel; begin < kNumel;
           begin += length, length = length * 2 + 1) {
        const std::size_t end = std::min(kNumel, begin + length);
        UpdateArguments run = state.run(begin, end);
        run.moments = {m.data() + begin, v.data() + begin};
        run.learning_rate = 0.1;
        run.step = first_step + step;
        run.rounding_key = key;
        run.first = static_cast<std::int64_t>(begin) + 1000;
        UpdateRun parts[] = {{.numel = run.numel / 3, .group = 0},
                             {.numel = run.numel - run.numel / 3, .group = 1}};
        if (runs == kWithAPlace) {
          parts[0].rounding = {.key = key, .first = run.first};
          parts[1].rounding = {.key = key, .first = run.first + parts[0].numel};
          run.rounding_key = 99, run.first = 5;
        }
        if (runs != kNone) run.runs = parts;
        update(optimizer, run);
      }
    }
    return std::tuple(state.master, m, v);
  };
  const auto expected = updated(false, 7, 1, kNone);
  EXPECT_EQ(updated(true, 7, 1, kNone), expected);
  EXPECT_EQ(updated(true, 7, 1, kOfTheFlat), expected);
  EXPECT_EQ(updated(true, 7, 1, kWithAPlace), expected);
  EXPECT_NE(std::get<1>(updated(false, 8, 1, kNone)), std::get<1>(expected));
  EXPECT_NE(std::get<1>(updated(false, 7, 2, kNone)), std::get<1>(expected));
}

TEST(optimizer, the_parameter_is_the_master_rounded_to_its_type) {
  State state(3);
  state.master = {1.0F, 1.00390625F, -3.0F};  // 1 + 2^-8 lies between two bf16 values: ties go to even, 1
  std::vector<std::uint16_t> parameter(3);
  UpdateArguments run = state.run(0, 3);
  run.parameter_type = DType::bf16;
  run.parameter = parameter.data();
  update(Optimizer{.options = SgdOptions{}}, run);
  EXPECT_EQ(parameter, (std::vector<std::uint16_t>{0x3F80, 0x3F80, 0xC040}));
}

TEST(optimizer, an_fp32_parameter_may_be_its_own_master) {
  State state(5), other(5);
  state.draw_gradient(1);
  other.draw_gradient(1);
  UpdateArguments run = state.run(0, 5);
  run.learning_rate = 0.1;
  run.parameter = state.master.data();
  update(Optimizer{}, run);
  std::vector<float> parameter(5);
  run = other.run(0, 5);
  run.learning_rate = 0.1;
  run.parameter = parameter.data();
  update(Optimizer{}, run);
  EXPECT_EQ(state.master, other.master);
  EXPECT_EQ(parameter, other.master);
}

TEST(optimizer, moments_count_the_state) {
  EXPECT_EQ(Optimizer{}.moments(), 2);
  EXPECT_EQ(Optimizer{.options = AdamOptions{}}.moments(), 2);
  EXPECT_EQ(Optimizer{.options = SgdOptions{}}.moments(), 0);
  EXPECT_EQ(Optimizer{.options = SgdOptions{.momentum = 0.9}}.moments(), 1);
  EXPECT_EQ(Optimizer{.options = LionOptions{}}.moments(), 1);
  EXPECT_EQ(Optimizer{.options = LionOptions{}}.name(), "lion");
  EXPECT_EQ(Optimizer{}.name(), "adamw");
  EXPECT_EQ(Optimizer{.options = AdamOptions{}}.name(), "adam");
  EXPECT_EQ(Optimizer{.options = SgdOptions{}}.name(), "sgd");
}

// All who go through the fields would miss one that is not listed.
TEST(optimizer, fields_are_all_members_of_the_options) {
  for (const std::string_view name : optimizer_names()) {
    OptimizerOptions options = optimizer_options(name);
    EXPECT_EQ(name_of(options), name);
    std::vector<const void*> members;
    std::size_t switches = 0;
    for (const OptimizerField& field : fields_of(options)) {
      EXPECT_FALSE(field.meaning.empty()) << field.name;
      members.push_back(std::visit([](const auto* value) -> const void* { return value; }, field.value));
      switches += std::holds_alternative<bool*>(field.value) ? 1 : 0;
    }
    std::ranges::sort(members);
    EXPECT_EQ(std::ranges::adjacent_find(members), members.end()) << name << " lists a member twice";
    const std::size_t words = members.size() - switches + (switches + 7) / 8;
    EXPECT_EQ(std::visit([](const auto& own) { return sizeof own; }, options), words * sizeof(double))
        << name;
  }
}

TEST(optimizer, a_name_that_is_not_known_is_refused_with_those_that_are) {
  EXPECT_EQ(refusal([] {
              (void)optimizer_options("adamax");
            }).find("optimizer 'adamax' is not known; use one of adamw, adam, sgd"),
            0U);
}

TEST(optimizer, moments_are_fp32_or_bf16) {
  EXPECT_EQ(refusal([] { Optimizer{.moment_type = DType::bf16}.check(); }), "accepted");
  EXPECT_EQ(refusal([] { Optimizer{.moment_type = DType::fp16}.check(); }),
            "adamw: moment_type is fp16; it must be fp32 or bf16");
}

TEST(optimizer, check_names_the_field_and_the_value) {
  const auto error = [](const Optimizer& optimizer) { return refusal([&] { optimizer.check(); }); };
  EXPECT_EQ(error({.options = AdamWOptions{.beta1 = 1.0}}), "adamw: beta1 = 1 must be from 0 to below 1");
  EXPECT_EQ(error({.options = AdamOptions{.beta2 = -0.5}}), "adam: beta2 = -0.5 must be from 0 to below 1");
  EXPECT_EQ(error({.options = AdamWOptions{.epsilon = 0}}),
            "adamw: epsilon = 0 must be above 0 in fp32, and finite");
  EXPECT_EQ(error({.options = AdamWOptions{.epsilon = 1e-60}}),
            "adamw: epsilon = 1e-60 must be above 0 in fp32, and finite");
  EXPECT_EQ(error({.options = AdamWOptions{.weight_decay = -1}}),
            "adamw: weight_decay = -1 must be 0 or more, and finite in fp32");
  EXPECT_EQ(error({.options = AdamWOptions{.weight_decay = 1e300}}),
            "adamw: weight_decay = 1e+300 must be 0 or more, and finite in fp32");
  EXPECT_EQ(error({.options = AdamOptions{.epsilon = 1e60}}),
            "adam: epsilon = 1e+60 must be above 0 in fp32, and finite");
  EXPECT_EQ(error({.options = SgdOptions{.nesterov = true}}),
            "sgd with nesterov: momentum = 0 must be above 0");
  EXPECT_EQ(error({.options = LionOptions{.beta2 = 1.0}}), "lion: beta2 = 1 must be from 0 to below 1");
  EXPECT_EQ(error({.options = SgdOptions{.momentum = 1.5}}), "sgd: momentum = 1.5 must be from 0 to below 1");
  EXPECT_EQ(error({.groups = {}}), "adamw: there must be at least one parameter group");
  EXPECT_EQ(error({.groups = {{.name = "head", .weight_decay = -0.1}}}),
            "parameter group 'head': weight_decay = -0.1 must be 0 or more, and finite in fp32");
  EXPECT_EQ(error({.groups = {{.name = "head", .learning_rate_factor = NAN}}}),
            "parameter group 'head': learning_rate_factor = nan must be 0 or more");
  EXPECT_EQ(error({}), "accepted");
}

TEST(optimizer, update_refuses_arguments_that_mean_nothing) {
  const auto error = [](const std::function<void(UpdateArguments&)>& spoil, const Optimizer& optimizer = {}) {
    State state(4);
    UpdateArguments run = state.run(0, 4);
    spoil(run);
    return refusal([&] { update(optimizer, run); });
  };
  EXPECT_EQ(error([](auto& run) { run.group = 1; }), "adamw: parameter group 1 does not exist; there are 1");
  EXPECT_EQ(error([](auto& run) { run.group = -1; }),
            "adamw: parameter group -1 does not exist; there are 1");
  const std::vector<UpdateRun> unknown = {{2, 0}, {2, 1}}, less = {{2, 0}, {1, 0}},
                               negative = {{-1, 0}, {5, 0}};
  EXPECT_EQ(error([&](auto& run) { run.runs = unknown; }),
            "adamw: parameter group 1 does not exist; there are 1");
  EXPECT_EQ(error([&](auto& run) { run.runs = less; }),
            "adamw: update: the runs have 3 elements in all, but numel = 4");
  EXPECT_EQ(error([&](auto& run) { run.runs = negative; }), "adamw: update: a run's numel = -1 is below 0");
  EXPECT_EQ(error([](auto& run) { run.step = 0; }), "adamw: update: step = 0 must count from 1");
  EXPECT_EQ(error([](auto& run) { run.threads = 0; }), "adamw: update: threads = 0 must be at least 1");
  EXPECT_EQ(error([](auto& run) { run.numel = -1; }), "adamw: update: numel = -1 is below 0");
  EXPECT_EQ(error([](auto& run) { run.gradient = nullptr; }), "adamw: update: gradient is null");
  EXPECT_EQ(error([](auto& run) { run.master = nullptr; }), "adamw: update: master is null");
  EXPECT_EQ(error([](auto& run) { run.moments[1] = nullptr; }), "adamw: update: moments[1] is null");
  EXPECT_EQ(error([](auto& run) { run.gradient_scale = INFINITY; }),
            "adamw: update: gradient_scale = inf is not finite");
  EXPECT_EQ(error([](auto& run) { run.learning_rate = NAN; }),
            "adamw: update: learning_rate = nan is not finite");
  EXPECT_EQ(error([](auto& run) { run.parameter_type = DType::fp16; }),
            "adamw: update: parameter is null, but fp16 cannot be its own master");
  EXPECT_EQ(error([](auto& run) { run.moments = {}; }, {.options = SgdOptions{}}), "accepted");
  EXPECT_EQ(error([](auto& run) { run = {}; }), "accepted");  // an empty run needs no pointers
}

TEST(gradient_clip, factor_brings_the_norm_to_the_limit) {
  const GradientClip clip{.max_norm = 1.0};
  clip.check();
  EXPECT_EQ(clip.factor(0.0), 1.0);
  EXPECT_EQ(clip.factor(0.5), 1.0);
  EXPECT_EQ(clip.factor(4.0), 1.0 / (4.0 + 1e-6));
  EXPECT_EQ(GradientClip{}.factor(1e30), 1.0);
  EXPECT_EQ(refusal([&] { (void)clip.factor(NAN); }),
            "gradient clipping: norm = nan must be finite; skip a step whose gradients are not");
  EXPECT_THROW((void)clip.factor(INFINITY), UsageError);
  EXPECT_THROW(GradientClip{.max_norm = -1}.check(), UsageError);
}

}  // namespace
}  // namespace tessera
