#include "tessera/learning_rate.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numbers>
#include <string>
#include <vector>

namespace tessera {
namespace {

std::string error_of(const LearningRateSchedule& schedule) {
  try {
    schedule.check();
  } catch (const UsageError& error) {
    return error.what();
  }
  return "";
}

TEST(schedule, warmup_rises_in_equal_parts_and_ends_at_the_peak) {
  for (LearningRateDecay decay :
       {LearningRateDecay::constant, LearningRateDecay::linear, LearningRateDecay::cosine}) {
    const LearningRateSchedule schedule{.decay = decay, .peak = 0.5, .warmup_steps = 4, .total_steps = 100};
    schedule.check();
    EXPECT_EQ(schedule.learning_rate(0), 0.125);
    EXPECT_EQ(schedule.learning_rate(1), 0.25);
    EXPECT_EQ(schedule.learning_rate(3), 0.5);
    EXPECT_EQ(schedule.learning_rate(4), 0.5);
  }
}

TEST(schedule, no_warmup_starts_at_the_peak) {
  for (LearningRateDecay decay : {LearningRateDecay::constant, LearningRateDecay::linear,
                                  LearningRateDecay::cosine, LearningRateDecay::warmup_stable_decay}) {
    const bool stable = decay == LearningRateDecay::warmup_stable_decay;
    const LearningRateSchedule schedule{
        .decay = decay, .peak = 0.25, .total_steps = 8, .decay_steps = stable ? 8 : 0};
    schedule.check();
    EXPECT_EQ(schedule.learning_rate(0), 0.25) << name_of(decay);
  }
}

TEST(schedule, constant_never_ends) {
  const LearningRateSchedule schedule{.decay = LearningRateDecay::constant, .peak = 3e-4};
  schedule.check();
  EXPECT_EQ(schedule.learning_rate(std::numeric_limits<std::int64_t>::max()), 3e-4);
}

TEST(schedule, linear_is_a_straight_line_to_the_final_value) {
  const LearningRateSchedule schedule{.decay = LearningRateDecay::linear,
                                      .peak = 1.0,
                                      .warmup_steps = 2,
                                      .total_steps = 10,
                                      .final_factor = 0.5};
  EXPECT_EQ(schedule.learning_rate(2), 1.0);
  EXPECT_EQ(schedule.learning_rate(3), 1.0 - 0.5 / 8);
  EXPECT_EQ(schedule.learning_rate(6), 0.75);
  EXPECT_EQ(schedule.learning_rate(9), 1.0 - 0.5 * 7 / 8);
  EXPECT_EQ(schedule.learning_rate(10), 0.5);
  EXPECT_EQ(schedule.learning_rate(1000), 0.5);
}

TEST(schedule, cosine_follows_half_a_cosine) {
  const LearningRateSchedule schedule{.decay = LearningRateDecay::cosine,
                                      .peak = 2.0,
                                      .warmup_steps = 10,
                                      .total_steps = 110,
                                      .final_factor = 0.1};
  EXPECT_EQ(schedule.learning_rate(10), 2.0);
  for (int step = 11; step < 110; ++step) {
    const double cosine = std::cos(std::numbers::pi * (step - 10) / 100.0);
    EXPECT_NEAR(schedule.learning_rate(step), 0.2 + 0.5 * 1.8 * (1 + cosine), 1e-14);
    EXPECT_LT(schedule.learning_rate(step), schedule.learning_rate(step - 1));
  }
  EXPECT_NEAR(schedule.learning_rate(60), 1.1, 1e-14);
  EXPECT_NEAR(schedule.learning_rate(110), 0.2, 1e-15);
  EXPECT_EQ(schedule.learning_rate(111), schedule.learning_rate(110));
}

TEST(schedule, warmup_stable_decay_holds_the_peak_until_the_decay) {
  const LearningRateSchedule schedule{.decay = LearningRateDecay::warmup_stable_decay,
                                      .peak = 1.0,
                                      .warmup_steps = 5,
                                      .total_steps = 100,
                                      .decay_steps = 20};
  schedule.check();
  for (int step = 4; step <= 80; ++step) EXPECT_EQ(schedule.learning_rate(step), 1.0);
  EXPECT_EQ(schedule.learning_rate(81), 0.95);
  EXPECT_EQ(schedule.learning_rate(90), 0.5);
  EXPECT_EQ(schedule.learning_rate(100), 0.0);
  EXPECT_EQ(schedule.learning_rate(101), 0.0);
}

// Every step of a short run, and one behind it.
std::vector<double> rates(const LearningRateSchedule& schedule) {
  schedule.check();
  std::vector<double> all;
  for (std::int64_t step = 0; step <= schedule.total_steps; ++step)
    all.push_back(schedule.learning_rate(step));
  return all;
}

TEST(schedule, the_last_decay_steps_begin_at_the_peak_and_end_one_step_short_of_the_final_value) {
  const auto of_decay = [](std::int64_t steps) {
    return rates({.decay = LearningRateDecay::warmup_stable_decay,
                  .peak = 1.0,
                  .total_steps = 8,
                  .decay_steps = steps,
                  .final_factor = 0.5});
  };
  EXPECT_EQ(of_decay(4), (std::vector<double>{1, 1, 1, 1, 1, 0.875, 0.75, 0.625, 0.5}));
  EXPECT_EQ(of_decay(2), (std::vector<double>{1, 1, 1, 1, 1, 1, 1, 0.75, 0.5}));
  EXPECT_EQ(of_decay(1), (std::vector<double>{1, 1, 1, 1, 1, 1, 1, 1, 0.5}));
}

TEST(schedule, a_decay_of_all_steps_behind_warmup_is_linear) {
  LearningRateSchedule schedule{.decay = LearningRateDecay::linear,
                                .peak = 3e-4,
                                .warmup_steps = 7,
                                .total_steps = 50,
                                .final_factor = 0.1};
  const std::vector<double> linear = rates(schedule);
  schedule.decay = LearningRateDecay::warmup_stable_decay;
  schedule.decay_steps = 43;
  EXPECT_EQ(rates(schedule), linear);
}

TEST(schedule, without_steps_behind_warmup_the_rate_drops_at_the_end) {
  const LearningRateSchedule all_warmup{
      .decay = LearningRateDecay::linear, .peak = 1.0, .warmup_steps = 10, .total_steps = 10};
  all_warmup.check();
  EXPECT_EQ(all_warmup.learning_rate(9), 1.0);
  EXPECT_EQ(all_warmup.learning_rate(10), 0.0);
}

TEST(schedule, errors_name_the_field_and_the_value) {
  EXPECT_NE(error_of({.peak = 0.0}).find("peak = 0"), std::string::npos);
  EXPECT_NE(error_of({.peak = std::nan("")}).find("peak = nan"), std::string::npos);
  EXPECT_NE(error_of({.warmup_steps = -1}).find("warmup_steps = -1"), std::string::npos);
  EXPECT_NE(error_of({.final_factor = 1.5}).find("final_factor = 1.5"), std::string::npos);
  EXPECT_NE(error_of({.decay_steps = 3}).find("decay_steps = 3"), std::string::npos);
  EXPECT_NE(error_of({.decay = LearningRateDecay::cosine}).find("total_steps = 0"), std::string::npos);
  EXPECT_NE(error_of({.decay = LearningRateDecay::linear, .warmup_steps = 5, .total_steps = 4})
                .find("warmup_steps = 5"),
            std::string::npos);
  for (const std::int64_t wrong : {-1, 0, 6})
    EXPECT_EQ(error_of({.decay = LearningRateDecay::warmup_stable_decay,
                        .warmup_steps = 5,
                        .total_steps = 10,
                        .decay_steps = wrong}),
              "schedule: decay_steps = " + std::to_string(wrong) +
                  ", how many of the last steps decay, must be at least 1 and at most total_steps − "
                  "warmup_steps = 5");
  EXPECT_THROW(LearningRateSchedule{}.learning_rate(-1), UsageError);
}

TEST(schedule, names_are_read_back) {
  for (LearningRateDecay decay : {LearningRateDecay::constant, LearningRateDecay::linear,
                                  LearningRateDecay::cosine, LearningRateDecay::warmup_stable_decay})
    EXPECT_EQ(parse_learning_rate_decay(name_of(decay)), decay);
  EXPECT_THROW(parse_learning_rate_decay("Cosine"), UsageError);
  for (BatchScaling rule : {BatchScaling::none, BatchScaling::linear, BatchScaling::square_root})
    EXPECT_EQ(parse_batch_scaling(name_of(rule)), rule);
  EXPECT_THROW(parse_batch_scaling("sqrt"), UsageError);
}

TEST(batch_scaling, follows_the_rule) {
  EXPECT_EQ(scale_learning_rate(0.1, 8192, 256, BatchScaling::linear), 0.1 * 32);
  EXPECT_EQ(scale_learning_rate(0.1, 64, 256, BatchScaling::linear), 0.1 / 4);
  EXPECT_EQ(scale_learning_rate(0.1, 1024, 256, BatchScaling::square_root), 0.2);
  EXPECT_EQ(scale_learning_rate(0.1, 1024, 256, BatchScaling::none), 0.1);
  EXPECT_THROW(scale_learning_rate(0.1, 0, 256, BatchScaling::linear), UsageError);
  EXPECT_THROW(scale_learning_rate(0.1, 256, 0, BatchScaling::linear), UsageError);
  EXPECT_THROW(scale_learning_rate(-0.1, 256, 256, BatchScaling::none), UsageError);
}

}  // namespace
}  // namespace tessera
