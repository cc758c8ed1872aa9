// The options of optimizers, by their fields.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>
#include <utility>

#include "optim/options.h"
#include "optim/rules.h"
#include "tessera/error.h"
#include "tessera/optimizer.h"
#include "tessera/optimizer_fields.h"

namespace tessera {
namespace {

// The rule of the options that a variant holds.
template <class Options>
using RuleOf = rules::Rule<std::decay_t<Options>>;

// Every optimizer with its defaults.
template <std::size_t... kPlaces>
std::vector<OptimizerOptions> make_defaults(std::index_sequence<kPlaces...>) {
  return {OptimizerOptions(std::in_place_index<kPlaces>)...};
}
std::vector<OptimizerOptions> all_defaults() {
  return make_defaults(std::make_index_sequence<std::variant_size_v<OptimizerOptions>>());
}

class FieldList {
 public:
  void operator()(std::string_view name, double& number, OptionRange range, std::string_view meaning) const {
    fields_.push_back({.name = name, .value = &number, .range = range, .meaning = meaning});
  }
  void operator()(std::string_view name, bool& on, std::string_view meaning) const {
    fields_.push_back({.name = name, .value = &on, .range = {}, .meaning = meaning});
  }
  std::vector<OptimizerField> take() { return std::move(fields_); }

 private:
  mutable std::vector<OptimizerField> fields_;
};

}  // namespace

std::vector<std::string_view> optimizer_names() {
  std::vector<std::string_view> names;
  for (const OptimizerOptions& options : all_defaults()) names.push_back(name_of(options));
  return names;
}

OptimizerOptions optimizer_options(std::string_view name) {
  for (const OptimizerOptions& options : all_defaults())
    if (name_of(options) == name) return options;
  throw UsageError(
      fmt::format("optimizer '{}' is not known; use one of {}", name, fmt::join(optimizer_names(), ", ")));
}

std::string_view name_of(const OptimizerOptions& options) {
  return std::visit([](const auto& own) { return RuleOf<decltype(own)>::kName; }, options);
}

std::vector<OptimizerField> fields_of(OptimizerOptions& options) {
  FieldList list;
  std::visit([&](auto& own) { RuleOf<decltype(own)>::visit_fields(own, list); }, options);
  return list.take();
}

int moments_of(const OptimizerOptions& options) {
  return std::visit([](const auto& own) { return RuleOf<decltype(own)>::moments(own); }, options);
}

std::string problem_of(OptionRange range, double value) {
  const auto single = static_cast<float>(value);
  switch (range) {
    case OptionRange::below_one:
      return value >= 0.0 && value < 1.0 ? "" : "from 0 to below 1";
    case OptionRange::positive:
      return std::isfinite(single) && single > 0.0F ? "" : "above 0 in fp32, and finite";
    case OptionRange::non_negative:
      return std::isfinite(single) && value >= 0.0 ? "" : "0 or more, and finite in fp32";
  }
  return "";
}

void check_options(OptimizerOptions options) {
  for (const OptimizerField& field : fields_of(options)) {
    const double* const* number = std::get_if<double*>(&field.value);
    if (number == nullptr) continue;
    if (const std::string right = problem_of(field.range, **number); !right.empty())
      throw UsageError(fmt::format("{}: {} = {} must be {}", name_of(options), field.name, **number, right));
  }
  std::visit([](const auto& own) { RuleOf<decltype(own)>::check(own); }, options);
}

}  // namespace tessera
