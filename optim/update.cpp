#include "optim/update.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <type_traits>
#include <variant>

#include "kernels/optimizer.h"
#include "tessera/error.h"

namespace tessera {
namespace {

// Throws UsageError for a group that does not exist.
void check_group(const Optimizer& optimizer, int group) { optimizer.weight_decay(group); }

void check_run(const Optimizer& optimizer, const UpdateArguments& run) {
  const auto refuse = [&](std::string_view problem) {
    throw UsageError(fmt::format("{}: update: {}", optimizer.name(), problem));
  };
  if (run.numel < 0) refuse(fmt::format("numel = {} is below 0", run.numel));
  if (run.step < 1) refuse(fmt::format("step = {} must count from 1", run.step));
  if (run.threads < 1) refuse(fmt::format("threads = {} must be at least 1", run.threads));
  if (!std::isfinite(run.learning_rate))
    refuse(fmt::format("learning_rate = {} is not finite", run.learning_rate));
  if (!std::isfinite(run.gradient_scale))
    refuse(fmt::format("gradient_scale = {} is not finite", run.gradient_scale));
  if (!run.runs.empty()) {
    std::int64_t numel = 0;
    for (const UpdateRun& part : run.runs) {
      if (part.numel < 0) refuse(fmt::format("a run's numel = {} is below 0", part.numel));
      numel += part.numel;
    }
    if (numel != run.numel)
      refuse(fmt::format("the runs have {} elements in all, but numel = {}", numel, run.numel));
  }
  if (run.numel == 0) return;
  if (run.gradient == nullptr) refuse("gradient is null");
  if (run.master == nullptr) refuse("master is null");
  for (int i = 0; i < optimizer.moments(); ++i)
    if (run.moments[static_cast<std::size_t>(i)] == nullptr) refuse(fmt::format("moments[{}] is null", i));
  if (run.parameter == nullptr && run.parameter_type != DType::fp32)
    refuse(fmt::format("parameter is null, but {} cannot be its own master", name_of(run.parameter_type)));
}

// An fp32 parameter that is its own master needs no second write.
void* separate_parameter(const UpdateArguments& run) {
  return run.parameter == run.master ? nullptr : run.parameter;
}

kernels::ComputeContext context_of(const UpdateArguments& run) {
  return {.threads = run.threads, .workspace = {}, .device = run.device, .stream = run.stream};
}

kernels::MomentRounding rounding_of(const UpdateArguments& run) {
  return {.key = kernels::rounding_key(run.rounding_key, run.step), .first = run.first};
}

UpdateArguments part_of(const Optimizer& optimizer, const UpdateArguments& all, std::int64_t begin,
                        std::int64_t numel) {
  UpdateArguments part = all;
  part.numel = numel;
  part.gradient = static_cast<const std::byte*>(all.gradient) + begin * bytes_of(all.gradient_type);
  part.master = all.master + begin;
  for (void*& moment : part.moments)
    if (moment != nullptr) moment = static_cast<std::byte*>(moment) + begin * bytes_of(optimizer.moment_type);
  part.first += begin;
  if (separate_parameter(all) != nullptr)
    part.parameter = static_cast<std::byte*>(all.parameter) + begin * bytes_of(all.parameter_type);
  else
    part.parameter = nullptr;  // its own master
  return part;
}

rules::AnyCoefficients coefficients_of(const Optimizer& optimizer, const UpdateArguments& run, int group) {
  return rules::coefficients_of(optimizer.options,
                                {.learning_rate = optimizer.learning_rate(group, run.learning_rate),
                                 .weight_decay = optimizer.weight_decay(group),
                                 .step = run.step});
}

// By at most kMostCoefficientRuns runs, or none.
void call_kernel(const Optimizer& optimizer, const UpdateArguments& run,
                 const rules::AnyCoefficients& coefficients, std::span<const kernels::CoefficientRun> runs) {
  kernels::optimizer_update(context_of(run), {.numel = run.numel,
                                              .gradient_type = run.gradient_type,
                                              .gradient = run.gradient,
                                              .master = run.master,
                                              .moment_count = optimizer.moments(),
                                              .moments = {run.moments[0], run.moments[1]},
                                              .moment_type = optimizer.moment_type,
                                              .rounding = rounding_of(run),
                                              .parameter_type = run.parameter_type,
                                              .parameter = separate_parameter(run),
                                              .coefficients = coefficients,
                                              .runs = runs,
                                              .gradient_scale = static_cast<float>(run.gradient_scale),
                                              .gate = run.gate,
                                              .block = run.block,
                                              .group = run.group,
                                              .flat = run.rounding_key});
}

void update_in_runs(const Optimizer& optimizer, const UpdateArguments& all) {
  std::array<kernels::CoefficientRun, kernels::kMostCoefficientRuns> some;  // a step allocates nothing
  std::int64_t begin = 0;
  for (std::span<const UpdateRun> rest = all.runs; !rest.empty();) {
    // Those that are rounded by the flat together, others one by one.
    const auto apart =
        std::ranges::find_if(rest, [](const UpdateRun& run) { return run.rounding.has_value(); });
    const std::size_t together = std::min(static_cast<std::size_t>(apart - rest.begin()), some.size());
    const std::size_t count = std::max<std::size_t>(together, 1);
    std::int64_t numel = 0;
    for (std::size_t r = 0; r < count; ++r) {
      some[r] = {.numel = rest[r].numel,
                 .coefficients = coefficients_of(optimizer, all, rest[r].group),
                 .group = rest[r].group};
      numel += rest[r].numel;
    }
    UpdateArguments part = part_of(optimizer, all, begin, numel);
    if (rest[0].rounding) {
      part.rounding_key = rest[0].rounding->key;
      part.first = rest[0].rounding->first;
    }
    call_kernel(optimizer, part, some[0].coefficients, {some.data(), count});
    begin += numel;
    rest = rest.subspan(count);
  }
}

}  // namespace

void update(const Optimizer& optimizer, const UpdateArguments& run) {
  check_run(optimizer, run);
  if (run.runs.empty()) check_group(optimizer, run.group);
  for (const UpdateRun& part : run.runs) check_group(optimizer, part.group);
  if (run.numel == 0) return;
  if (run.runs.empty()) return call_kernel(optimizer, run, coefficients_of(optimizer, run, run.group), {});
  update_in_runs(optimizer, run);
}

bool write_update(const Optimizer& optimizer, double learning_rate, std::int64_t step,
                  kernels::StepBlock& block) {
  const auto groups = static_cast<int>(optimizer.groups.size());
  if (groups > kernels::kMostStepGroups) return false;
  const UpdateArguments terms = {.learning_rate = learning_rate, .step = step};
  block.update.step = step;
  for (int group = 0; group < groups; ++group)
    std::visit(
        [&](const auto& own) {
          using Coefficients = std::decay_t<decltype(own)>;
          using Numbers = kernels::StepCoefficients<Coefficients>;
          static_assert(sizeof(Numbers) <= sizeof(block.update.numbers) &&
                        std::is_trivially_copyable_v<Coefficients>);
          std::byte* const numbers = block.update.numbers;
          std::memcpy(numbers + offsetof(Numbers, all), &own, sizeof own);
          std::memcpy(
              numbers + offsetof(Numbers, groups) + static_cast<std::size_t>(group) * sizeof own.group,
              &own.group, sizeof own.group);
        },
        coefficients_of(optimizer, terms, group));
  return true;
}

}  // namespace tessera
