#include "tessera/optimizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "kernels/optimizer.h"
#include "optim/options.h"
#include "tessera/error.h"
#include "tessera/philox.h"

namespace tessera {
namespace {

void require(bool right, std::string_view owner, std::string_view field, double value,
             std::string_view what) {
  if (!right) throw UsageError(fmt::format("{}: {} = {} must be {}", owner, field, value, what));
}

const ParameterGroup& group_of(const Optimizer& optimizer, int group) {
  if (group < 0 || static_cast<std::size_t>(group) >= optimizer.groups.size())
    throw UsageError(fmt::format("{}: parameter group {} does not exist; there are {}", optimizer.name(),
                                 group, optimizer.groups.size()));
  return optimizer.groups[static_cast<std::size_t>(group)];
}

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

// Every step rounds anew.
kernels::MomentRounding rounding_of(const UpdateArguments& run) {
  constexpr std::uint64_t kStream = 0x726F756E64;  // "round"
  return {.key = random_key(run.rounding_key, kStream, static_cast<std::uint64_t>(run.step)),
          .first = run.first};
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
                                              .gate = run.gate});
}

void update_in_runs(const Optimizer& optimizer, const UpdateArguments& all) {
  std::array<kernels::CoefficientRun, kernels::kMostCoefficientRuns> some;  // a step allocates nothing
  std::int64_t begin = 0;
  for (std::span<const UpdateRun> rest = all.runs; !rest.empty();) {
    const std::size_t count = std::min(rest.size(), some.size());
    std::int64_t numel = 0;
    for (std::size_t r = 0; r < count; ++r) {
      some[r] = {.numel = rest[r].numel, .coefficients = coefficients_of(optimizer, all, rest[r].group)};
      numel += rest[r].numel;
    }
    call_kernel(optimizer, part_of(optimizer, all, begin, numel), some[0].coefficients, {some.data(), count});
    begin += numel;
    rest = rest.subspan(count);
  }
}

}  // namespace

void Optimizer::check() const {
  check_options(options);
  if (moment_type != DType::fp32 && moment_type != DType::bf16)
    throw UsageError(
        fmt::format("{}: moment_type is {}; it must be fp32 or bf16", name(), tessera::name_of(moment_type)));
  if (groups.empty()) throw UsageError(fmt::format("{}: there must be at least one parameter group", name()));
  for (const ParameterGroup& group : groups) {
    const std::string owner = fmt::format("parameter group '{}'", group.name);
    if (group.weight_decay)
      if (const std::string right = problem_of(OptionRange::non_negative, *group.weight_decay);
          !right.empty())
        require(false, owner, "weight_decay", *group.weight_decay, right);
    require(std::isfinite(group.learning_rate_factor) && group.learning_rate_factor >= 0.0, owner,
            "learning_rate_factor", group.learning_rate_factor, "0 or more");
  }
}

std::string_view Optimizer::name() const { return name_of(options); }

int Optimizer::moments() const { return moments_of(options); }

double Optimizer::weight_decay(int group) const {
  const double common = std::visit([](const auto& o) { return o.weight_decay; }, options);
  return group_of(*this, group).weight_decay.value_or(common);
}

double Optimizer::learning_rate(int group, double scheduled) const {
  return scheduled * group_of(*this, group).learning_rate_factor;
}

void Optimizer::update(const UpdateArguments& run) const {
  check_run(*this, run);
  if (run.runs.empty()) group_of(*this, run.group);
  for (const UpdateRun& part : run.runs) group_of(*this, part.group);
  if (run.numel == 0) return;
  if (run.runs.empty()) return call_kernel(*this, run, coefficients_of(*this, run, run.group), {});
  update_in_runs(*this, run);
}

void GradientClip::check() const {
  require(std::isfinite(max_norm) && max_norm >= 0.0, "gradient clipping", "max_norm", max_norm,
          "0 (off) or more");
}

double GradientClip::factor(double norm) const {
  require(std::isfinite(norm) && norm >= 0.0, "gradient clipping", "norm", norm,
          "finite; skip a step whose gradients are not");
  return kernels::clip_factor(norm, max_norm);
}

}  // namespace tessera
