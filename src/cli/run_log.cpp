#include "src/cli/run_log.h"

#include <fmt/format.h>

#include <limits>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>
#include <vector>

#include "src/cli/output.h"
#include "tessera/error.h"

namespace tessera::cli {

namespace {

constexpr double kSmooth = 0.9;  // of the tokens a second that are shown

// What TensorBoard shows of a line of metrics, and under which name.
constexpr std::pair<const char*, std::string_view> kTags[] = {
    {"loss", "loss/train"},
    {"validation_loss", "loss/validation"},
    {"learning_rate", "optimizer/learning_rate"},
    {"gradient_norm", "optimizer/gradient_norm"},
    {"loss_scale", "optimizer/loss_scale"},
    {"tokens_per_second", "speed/tokens_per_second"},
    {"model_flops_utilisation", "speed/model_flops_utilisation"},
    {"hidden", "speed/hidden"},
    {"busy_least", "balance/busy_least"},
    {"busy_most", "balance/busy_most"}};

void write_events(EventFile& events, const nlohmann::json& line) {
  if (!events) return;
  std::vector<Scalar> scalars;
  for (const auto& [field, tag] : kTags)
    if (const auto found = line.find(field); found != line.end())
      scalars.push_back({tag, found->get<double>()});
  if (!scalars.empty()) events.write(line.at("step").get<std::int64_t>(), scalars);
}

}  // namespace

RunLog::RunLog(const Setup& setup, Metrics& metrics, RunSummary& summary, std::int64_t first_step)
    : setup_(setup),
      metrics_(metrics),
      summary_(summary),
      progress_(
          {.first_step = first_step, .steps = setup.config.run.steps, .seconds = setup.config.run.seconds}),
      start_(Clock::now()),
      first_step_(first_step) {
  summary_.first_step = summary_.step = first_step;
  // What comes again, also of a run that ended before it saved.
  const RunConfig& run = setup.config.run;
  metrics_.rewind(first_step, (run.evaluate_every > 0 && run.steps > 0 && first_step >= run.steps) ||
                                  only_evaluates(setup.config));
  if (!run.tensorboard.empty()) events_ = EventFile("run.tensorboard", run.tensorboard, first_step + 1);
}

double RunLog::elapsed() const { return seconds_since(start_); }

void RunLog::finish() {
  progress_.finish();
  summary_.seconds = elapsed();
}

void RunLog::sum_up(const LoggedStep& step) {
  summary_.step = step.number;
  summary_.tokens += setup_.tokens_per_step();
  summary_.step_seconds += step.seconds;
  summary_.skipped += step.result.applied ? 0 : 1;
  if (step.number == first_step_ + 1) summary_.first_loss = step.result.loss;
  summary_.loss = step.result.loss;
  if (!step.timing || step.timing->communication_us == 0.0) return;
  measured_.communication_us += step.timing->communication_us;
  measured_.exposed_us += step.timing->exposed_us;
  summary_.hidden = measured_.hidden();
}

void RunLog::show(const LoggedStep& step, double rate) {
  shown_rate_ = step.number <= first_step_ + 2 ? rate : kSmooth * shown_rate_ + (1.0 - kSmooth) * rate;
  progress_.step({.elapsed = elapsed(),
                  .result = step.result,
                  .step = step.number,
                  .tokens_per_second = shown_rate_,
                  .model_flops = summary_.utilisation.flops(shown_rate_),
                  .utilisation = summary_.utilisation.share(shown_rate_),
                  .memory = step.memory,
                  .hidden = summary_.hidden});
  if (step.result.applied || step.result.reason != SkipReason::not_finite) return;
  const bool scaled = setup_.options.engine.loss_scaling.has_value();
  note(fmt::format("step {} was skipped: the gradient of {} is not finite{}", step.number,
                   step.result.first_nonfinite,
                   scaled ? fmt::format("; the loss scale was {}", step.result.loss_scale) : ""));
}

void RunLog::step(const LoggedStep& step) {
  const double rate = static_cast<double>(setup_.tokens_per_step()) / step.seconds;
  sum_up(step);
  show(step, rate);
  nlohmann::json line = {{"step", step.number},
                         {"loss", step.result.loss},
                         {"learning_rate", step.result.learning_rate},
                         {"gradient_norm", step.result.gradient_norm},
                         {"loss_scale", step.result.loss_scale},
                         {"applied", step.result.applied},
                         {"tokens", step.tokens},
                         {"seconds", elapsed()},
                         {"tokens_per_second", rate},
                         {"model_flops_per_second", summary_.utilisation.flops(rate)}};
  if (const auto share = summary_.utilisation.share(rate)) line["model_flops_utilisation"] = *share;
  if (step.timing) {
    line["issued"] = step.timing->issue_us / step.timing->total_us;
    if (step.timing->communication_us > 0.0) line["hidden"] = step.timing->hidden();
  }
  if (step.balance) {
    line["busy_least"] = step.balance->least_seconds;
    line["busy_least_rank"] = step.balance->fastest;
    line["busy_most"] = step.balance->most_seconds;
    line["busy_most_rank"] = step.balance->slowest;
    watch(*step.balance);
  }
  write(line);
}

void RunLog::evaluated(std::int64_t step, const StepResult& result) {
  // Without a target that counts, there is no mean.
  const double loss = result.weight > 0 ? result.loss : std::numeric_limits<double>::quiet_NaN();
  summary_.validation_loss = loss;
  summary_.validation_step = step;
  note(fmt::format("step {}  validation loss {}{}", step, loss_text(loss),
                   result.weight > 0 ? "" : ": no target that was read counts"));
  write({{"step", step},
         {"validation_loss", loss},
         {"validation_tokens", static_cast<std::int64_t>(result.weight)}});
}

void RunLog::left_out(std::int64_t step) { write({{"step", step}, {"validation_left_out", true}}); }

// Ranks of a pipeline have different parts to compute, so there nothing is told.
void RunLog::watch(const Balance& balance) {
  if (setup_.options.engine.mesh.pipeline > 1) return;
  if (const std::optional<int> rank = lag_.lagging(balance))
    note(
        fmt::format("rank {} lags: it computes {:.2f} s a step where rank {} computes {:.2f} s, and all wait",
                    *rank, balance.most_seconds, balance.fastest, balance.least_seconds));
}

void RunLog::write(const nlohmann::json& line) {
  try {
    metrics_.write(line);
    write_events(events_, line);
  } catch (const EnvironmentError&) {
    unwritten_ = std::current_exception();
  }
}

}  // namespace tessera::cli
