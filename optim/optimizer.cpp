#include "tessera/optimizer.h"

#include <fmt/format.h>

#include <cmath>
#include <variant>

#include "kernels/optimizer.h"
#include "optim/options.h"
#include "tessera/error.h"

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

}  // namespace

std::vector<ParameterGroup> default_groups() { return {ParameterGroup{}}; }

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
