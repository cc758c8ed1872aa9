#include "tessera/loss_scaler.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tessera/error.h"

namespace tessera {
namespace {

void record(LossScaler& scaler, StepOutcome outcome, int times) {
  for (int i = 0; i < times; ++i) scaler.record(outcome);
}

TEST(loss_scaler, grows_after_an_interval_of_applied_steps) {
  LossScaler scaler({.initial = 8, .growth_interval = 3});
  EXPECT_EQ(scaler.scale(), 8);
  record(scaler, StepOutcome::applied, 2);
  EXPECT_EQ(scaler.scale(), 8);
  scaler.record(StepOutcome::applied);
  EXPECT_EQ(scaler.scale(), 16);
  record(scaler, StepOutcome::applied, 3);
  EXPECT_EQ(scaler.scale(), 32);
}

TEST(loss_scaler, a_skipped_step_backs_off_and_starts_the_interval_again) {
  LossScaler scaler({.initial = 8, .growth_interval = 3});
  record(scaler, StepOutcome::applied, 2);
  scaler.record(StepOutcome::skipped);
  EXPECT_EQ(scaler.scale(), 4);
  record(scaler, StepOutcome::applied, 2);
  EXPECT_EQ(scaler.scale(), 4);
  scaler.record(StepOutcome::applied);
  EXPECT_EQ(scaler.scale(), 8);
  EXPECT_EQ(scaler.state().skipped, 1);
  EXPECT_EQ(scaler.state().skipped_in_a_row, 0);
}

TEST(loss_scaler, stays_within_its_bounds_and_says_when_it_can_do_no_more) {
  LossScaler scaler({.initial = 4, .growth_interval = 1, .min = 2, .max = 8});
  record(scaler, StepOutcome::applied, 5);
  EXPECT_EQ(scaler.scale(), 8);
  record(scaler, StepOutcome::skipped, 2);
  EXPECT_EQ(scaler.scale(), 2);
  EXPECT_FALSE(scaler.exhausted());
  scaler.record(StepOutcome::skipped);
  EXPECT_EQ(scaler.scale(), 2);
  EXPECT_TRUE(scaler.exhausted());
  EXPECT_EQ(scaler.state().skipped_in_a_row, 3);
  scaler.record(StepOutcome::applied);
  EXPECT_FALSE(scaler.exhausted());
}

TEST(loss_scaler, a_restored_scaler_continues_as_if_it_never_stopped) {
  const LossScaleOptions options{.initial = 1024, .growth_interval = 5};
  LossScaler whole(options);
  LossScaler first(options);
  // Step i is skipped where i is a multiple of 7.
  const auto outcome = [](int i) { return i % 7 == 0 ? StepOutcome::skipped : StepOutcome::applied; };
  for (int i = 1; i <= 40; ++i) whole.record(outcome(i));
  for (int i = 1; i <= 18; ++i) first.record(outcome(i));
  LossScaler second(options);
  second.restore(first.state());
  for (int i = 19; i <= 40; ++i) second.record(outcome(i));
  EXPECT_EQ(second.state(), whole.state());
}

TEST(loss_scaler, refuses_options_that_round_or_mean_nothing) {
  EXPECT_THROW(LossScaler({.initial = 3}), UsageError);
  EXPECT_THROW(LossScaler({.initial = 0}), UsageError);
  EXPECT_THROW(LossScaler({.initial = -2}), UsageError);
  EXPECT_THROW(LossScaler({.initial = std::nan("")}), UsageError);
  EXPECT_THROW(LossScaler({.initial = INFINITY}), UsageError);
  EXPECT_THROW(LossScaler({.growth_factor = 1}), UsageError);
  EXPECT_THROW(LossScaler({.growth_interval = 0}), UsageError);
  EXPECT_THROW(LossScaler({.backoff_factor = 1}), UsageError);
  EXPECT_THROW(LossScaler({.initial = 8, .min = 16}), UsageError);
  EXPECT_THROW(LossScaler({.initial = 8, .max = 4}), UsageError);
  try {
    LossScaler({.backoff_factor = 0.3});
    FAIL();
  } catch (const UsageError& error) {
    EXPECT_STREQ(error.what(), "loss scale: backoff_factor = 0.3 must be a power of two below 1");
  }
}

TEST(LossScaler, AnInitialScaleOutsideIsToldTheRange) {
  try {
    LossScaler({.initial = 0.5});
    FAIL() << "accepted";
  } catch (const UsageError& error) {
    EXPECT_STREQ(error.what(),
                 "loss scale: initial = 0.5 must be a power of two from min, 1, to max, 16777216");
  }
}

TEST(loss_scaler, refuses_a_saved_state_that_cannot_be_its_own) {
  LossScaler scaler({.initial = 8, .min = 1, .max = 64});
  EXPECT_THROW(scaler.restore({.scale = 128}), UsageError);
  EXPECT_THROW(scaler.restore({.scale = 5}), UsageError);
  EXPECT_THROW(scaler.restore({.scale = std::nan("")}), UsageError);
  EXPECT_THROW(scaler.restore({.scale = 8, .applied_in_a_row = -1}), UsageError);
  EXPECT_EQ(scaler.scale(), 8);
}

}  // namespace
}  // namespace tessera
