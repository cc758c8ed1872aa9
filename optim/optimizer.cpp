#include "tessera/optimizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "kernels/optimizer.h"
#include "tessera/error.h"
#include "tessera/philox.h"

namespace tessera {
namespace {

void require(bool right, std::string_view owner, std::string_view field, double value,
             std::string_view what) {
  if (!right) throw UsageError(fmt::format("{}: {} = {} must be {}", owner, field, value, what));
}

void require_weight_decay(std::string_view owner, double value) {
  require(std::isfinite(static_cast<float>(value)) && value >= 0.0, owner, "weight_decay", value,
          "0 or more, and finite in fp32");
}

void check_adam(std::string_view owner, double beta1, double beta2, double epsilon) {
  require(beta1 >= 0.0 && beta1 < 1.0, owner, "beta1", beta1, "from 0 to below 1");
  require(beta2 >= 0.0 && beta2 < 1.0, owner, "beta2", beta2, "from 0 to below 1");
  // In fp32: a smaller epsilon would vanish, and 0/0 would follow where a gradient was always 0.
  require(std::isfinite(static_cast<float>(epsilon)) && static_cast<float>(epsilon) > 0.0F, owner, "epsilon",
          epsilon, "above 0 in fp32, and finite");
}

void check_options(const AdamWOptions& o) { check_adam("adamw", o.beta1, o.beta2, o.epsilon); }
void check_options(const AdamOptions& o) { check_adam("adam", o.beta1, o.beta2, o.epsilon); }
void check_options(const SgdOptions& o) {
  require(o.momentum >= 0.0 && o.momentum < 1.0, "sgd", "momentum", o.momentum, "from 0 to below 1");
  if (o.nesterov) require(o.momentum > 0.0, "sgd with nesterov", "momentum", o.momentum, "above 0");
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

void run_adam(const Optimizer& optimizer, const UpdateArguments& run, const kernels::AdamWSettings& settings,
              std::span<const kernels::AdamWRun> runs) {
  kernels::adamw_update(context_of(run), {.numel = run.numel,
                                          .gradient_type = run.gradient_type,
                                          .gradient = run.gradient,
                                          .master = run.master,
                                          .m = run.moments[0],
                                          .v = run.moments[1],
                                          .moment_type = optimizer.moment_type,
                                          .rounding = rounding_of(run),
                                          .parameter_type = run.parameter_type,
                                          .parameter = separate_parameter(run),
                                          .coefficients = kernels::make_adamw_coefficients(settings),
                                          .runs = runs,
                                          .gate = run.gate});
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

void run_sgd(const Optimizer& optimizer, const UpdateArguments& run,
             const kernels::SgdCoefficients& coefficients) {
  kernels::sgd_update(context_of(run), {.numel = run.numel,
                                        .gradient_type = run.gradient_type,
                                        .gradient = run.gradient,
                                        .master = run.master,
                                        .momentum = run.moments[0],
                                        .moment_type = optimizer.moment_type,
                                        .rounding = rounding_of(run),
                                        .parameter_type = run.parameter_type,
                                        .parameter = separate_parameter(run),
                                        .coefficients = coefficients,
                                        .gate = run.gate});
}

// Calls the kernel of the optimizer that the options name.
struct Update {
  const Optimizer& optimizer;
  const UpdateArguments& run;

  double learning_rate(int group) const { return optimizer.learning_rate(group, run.learning_rate); }

  template <typename AnyAdam>
  void adam(const AnyAdam& o, bool decoupled) const {
    const auto settings = [&](int group) {
      return kernels::AdamWSettings{.learning_rate = learning_rate(group),
                                    .beta1 = o.beta1,
                                    .beta2 = o.beta2,
                                    .epsilon = o.epsilon,
                                    .weight_decay = optimizer.weight_decay(group),
                                    .decoupled = decoupled,
                                    .gradient_scale = run.gradient_scale,
                                    .step = run.step};
    };
    if (run.runs.empty()) return run_adam(optimizer, run, settings(run.group), {});
    std::array<kernels::AdamWRun, kernels::kMostAdamWRuns> some;  // a step allocates nothing
    std::int64_t begin = 0;
    for (std::span<const UpdateRun> rest = run.runs; !rest.empty();) {
      const std::size_t count = std::min(rest.size(), some.size());
      std::int64_t numel = 0;
      for (std::size_t r = 0; r < count; ++r) {
        const kernels::AdamWCoefficients c = kernels::make_adamw_coefficients(settings(rest[r].group));
        some[r] = {.numel = rest[r].numel, .step = c.step, .decay = c.decay, .l2 = c.l2};
        numel += rest[r].numel;
      }
      run_adam(optimizer, part_of(optimizer, run, begin, numel), settings(rest.front().group),
               {some.data(), count});
      begin += numel;
      rest = rest.subspan(count);
    }
  }

  void operator()(const AdamWOptions& o) const { adam(o, true); }
  void operator()(const AdamOptions& o) const { adam(o, false); }

  void operator()(const SgdOptions& o) const {
    const auto coefficients = [&](int group) {
      return kernels::SgdCoefficients{.gradient_scale = static_cast<float>(run.gradient_scale),
                                      .learning_rate = static_cast<float>(learning_rate(group)),
                                      .momentum = static_cast<float>(o.momentum),
                                      .weight_decay = static_cast<float>(optimizer.weight_decay(group)),
                                      .nesterov = o.nesterov};
    };
    if (run.runs.empty()) return run_sgd(optimizer, run, coefficients(run.group));
    std::int64_t begin = 0;
    for (const UpdateRun& part : run.runs) {
      run_sgd(optimizer, part_of(optimizer, run, begin, part.numel), coefficients(part.group));
      begin += part.numel;
    }
  }
};

}  // namespace

void Optimizer::check() const {
  std::visit(
      [this](const auto& o) {
        check_options(o);
        require_weight_decay(name(), o.weight_decay);
      },
      options);
  if (moment_type != DType::fp32 && moment_type != DType::bf16)
    throw UsageError(
        fmt::format("{}: moment_type is {}; it must be fp32 or bf16", name(), tessera::name_of(moment_type)));
  if (groups.empty()) throw UsageError(fmt::format("{}: there must be at least one parameter group", name()));
  for (const ParameterGroup& group : groups) {
    const std::string owner = fmt::format("parameter group '{}'", group.name);
    if (group.weight_decay) require_weight_decay(owner, *group.weight_decay);
    require(std::isfinite(group.learning_rate_factor) && group.learning_rate_factor >= 0.0, owner,
            "learning_rate_factor", group.learning_rate_factor, "0 or more");
  }
}

std::string_view Optimizer::name() const {
  constexpr std::array<std::string_view, std::variant_size_v<OptimizerOptions>> kNames = {"adamw", "adam",
                                                                                          "sgd"};
  return kNames.at(options.index());
}

int Optimizer::moments() const {
  if (const auto* sgd = std::get_if<SgdOptions>(&options)) return sgd->momentum > 0.0 ? 1 : 0;
  return 2;
}

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
  if (run.numel > 0) std::visit(Update{*this, run}, options);
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
