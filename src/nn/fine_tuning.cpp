#include "tessera/fine_tuning.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <utility>

#include "src/nn/amended.h"
#include "tessera/error.h"

namespace tessera {
namespace {

std::vector<ParameterSpec> parameters_of(const Model& model) {
  std::vector<ParameterSpec> all;
  for (const std::unique_ptr<Module>& module : model.modules)
    for (ParameterSpec& parameter : module->parameters()) all.push_back(std::move(parameter));
  return all;
}

// How many letters must change for the pattern to match the name: Levenshtein's distance, in which a star
// takes any letters for nothing.
int edits(std::string_view pattern, std::string_view name) {
  std::vector<int> row(name.size() + 1);
  for (std::size_t j = 0; j <= name.size(); ++j) row[j] = static_cast<int>(j);
  for (const char letter : pattern) {
    int diagonal = row[0];
    if (letter != '*') ++row[0];
    for (std::size_t j = 1; j <= name.size(); ++j) {
      const int replaced = diagonal + (letter == name[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] =
          letter == '*' ? std::min(row[j], row[j - 1]) : std::min({row[j] + 1, row[j - 1] + 1, replaced});
    }
  }
  return row.back();
}

// The name of the parameter whose values it has.
const std::string& home_of(const ParameterSpec& parameter) {
  return parameter.tied_to.empty() ? parameter.name : parameter.tied_to;
}

// The matrices that a pattern matches, whichever of their names it does.
std::set<std::string> homes_matching(const Model& model, std::string_view pattern, std::string_view key) {
  const std::vector<std::string> names = matching_parameters(model, pattern, key);
  const std::set<std::string> matching(names.begin(), names.end());
  std::set<std::string> homes;
  for (const ParameterSpec& parameter : parameters_of(model))
    if (matching.contains(parameter.name)) homes.insert(home_of(parameter));
  return homes;
}

}  // namespace

bool matches_pattern(std::string_view pattern, std::string_view name) {
  const std::size_t star = pattern.find('*');
  if (star == pattern.npos) return pattern == name;
  if (!name.starts_with(pattern.substr(0, star))) return false;
  const std::string_view rest = pattern.substr(star + 1);
  for (std::size_t begin = star; begin <= name.size(); ++begin)
    if (matches_pattern(rest, name.substr(begin))) return true;
  return false;
}

std::vector<std::string> matching_parameters(const Model& model, std::string_view pattern,
                                             std::string_view key) {
  std::vector<std::string> names;
  std::string nearest;
  int distance = -1;
  for (const ParameterSpec& parameter : parameters_of(model)) {
    if (matches_pattern(pattern, parameter.name)) names.push_back(parameter.name);
    const int own = edits(pattern, parameter.name);
    if (distance >= 0 && own >= distance) continue;
    nearest = parameter.name;
    distance = own;
  }
  if (!names.empty()) return names;
  throw UsageError(
      fmt::format("{}: '{}' matches no parameter of the model; the nearest is '{}', and * stands for "
                  "any characters",
                  key, pattern, nearest));
}

Model with_frozen(Model model, const std::vector<std::string>& patterns, std::string_view key) {
  std::set<std::string> frozen;
  for (const std::string& pattern : patterns) frozen.merge(homes_matching(model, pattern, key));
  if (frozen.empty()) return model;
  bool trains = false;
  for (const ParameterSpec& parameter : parameters_of(model))
    trains |= parameter.trainable && !frozen.contains(home_of(parameter));
  if (!trains)
    throw UsageError(
        fmt::format("{}: nothing would be trained: every parameter is frozen; leave out a pattern", key));
  return nn::amended(std::move(model), [&](ParameterSpec& parameter) {
    if (frozen.contains(home_of(parameter))) parameter.trainable = false;
  });
}

Model with_rate_factors(Model model, const std::vector<LearningRateFactor>& factors, std::string_view key) {
  if (factors.empty()) return model;
  std::set<std::string> trained;
  for (const ParameterSpec& parameter : parameters_of(model))
    if (parameter.trainable) trained.insert(home_of(parameter));
  std::map<std::string, const LearningRateFactor*> chosen;
  for (const LearningRateFactor& factor : factors) {
    if (!(factor.factor > 0.0) || !std::isfinite(factor.factor))
      throw UsageError(
          fmt::format("{}: '{}' has factor {}; it must be above 0 and finite; what is not trained is "
                      "frozen",
                      key, factor.pattern, factor.factor));
    bool any = false;
    for (const std::string& home : homes_matching(model, factor.pattern, key)) {
      if (!trained.contains(home)) continue;
      any = true;
      const auto [at, is_new] = chosen.emplace(home, &factor);
      if (!is_new)
        throw UsageError(fmt::format("{}: '{}' and '{}' both match parameter '{}'; make one of them narrower",
                                     key, at->second->pattern, factor.pattern, home));
    }
    if (!any)
      throw UsageError(fmt::format(
          "{}: all parameters that '{}' matches are frozen, and have no learning rate", key, factor.pattern));
  }
  // A group of its own for each group of the model and factor that occur together.
  std::map<std::pair<int, double>, int> groups;
  for (const ParameterSpec& parameter : parameters_of(model)) {
    const auto found = chosen.find(home_of(parameter));
    if (found == chosen.end() || found->second->factor == 1.0) continue;
    const double factor = found->second->factor;
    const auto group = static_cast<std::size_t>(parameter.group);
    if (!groups.emplace(std::pair(parameter.group, factor), static_cast<int>(model.groups.size())).second)
      continue;
    model.groups.push_back(model.groups[group]);
    model.rate_factors.push_back(model.rate_factors[group] * factor);
  }
  return nn::amended(std::move(model), [&](ParameterSpec& parameter) {
    const auto found = chosen.find(home_of(parameter));
    if (found == chosen.end() || found->second->factor == 1.0) return;
    parameter.group = groups.at({parameter.group, found->second->factor});
  });
}

}  // namespace tessera
