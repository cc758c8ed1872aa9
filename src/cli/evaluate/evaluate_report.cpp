#include "src/cli/evaluate/evaluate_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "src/cli/output.h"

namespace tessera::cli {

namespace {

using nlohmann::json;

constexpr std::size_t kNarrowest = 12, kWidest = 48;  // of the column of names

json or_null(const auto& value) { return value ? json(*value) : json(nullptr); }

std::string number(const std::optional<double>& value, int digits) {
  return value ? fmt::format("{:.{}f}", *value, digits) : "-";
}

template <class All>
std::size_t width_of(const All& all) {
  std::size_t width = kNarrowest;
  for (const auto& one : all) width = std::max(width, escaped(one.name).size());
  return std::min(width, kWidest);
}

// The end of a long name tells more.
std::string fitted(const std::string& name, std::size_t width) {
  const std::string text = escaped(name);
  return text.size() <= width ? text : "…" + text.substr(text.size() - width + 1);
}

TextMeasures sum_of(std::span<const TextMeasures> measures) {
  TextMeasures all{.name = "all", .score = {}};
  for (const TextMeasures& one : measures) all += one;
  return all;
}

json to_json(const TextMeasures& one) {
  return {{"documents", one.documents},
          {"tokens", one.tokens},
          {"counted", one.score.counted},
          {"bytes", or_null(one.bytes)},
          {"loss", or_null(one.loss())},
          {"perplexity", or_null(one.perplexity())},
          {"bits_per_byte", or_null(one.bits_per_byte())}};
}

json scores_of(const Question& question, std::span<const Score> scores) {
  json made = json::array();
  for (std::size_t choice = 0; choice < question.choice_bytes.size(); ++choice)
    made.push_back(-scores[question.first_piece + choice].loss);
  return made;
}

}  // namespace

std::optional<double> TextMeasures::loss() const {
  if (score.counted == 0) return std::nullopt;
  return score.loss / static_cast<double>(score.counted);
}

std::optional<double> TextMeasures::perplexity() const {
  const std::optional<double> mean = loss();
  return mean ? std::optional(std::exp(*mean)) : std::nullopt;
}

std::optional<double> TextMeasures::bits_per_byte() const {
  if (score.counted == 0 || bytes.value_or(0) == 0) return std::nullopt;
  return score.loss / std::numbers::ln2 / static_cast<double>(*bytes);
}

TextMeasures& TextMeasures::operator+=(const TextMeasures& other) {
  documents += other.documents;
  tokens += other.tokens;
  bytes = bytes && other.bytes ? std::optional(*bytes + *other.bytes) : std::nullopt;
  score.loss += other.score.loss;
  score.counted += other.score.counted;
  return *this;
}

void print_measures(std::span<const TextMeasures> measures) {
  const std::size_t width = width_of(measures);
  fmt::print("\n{:<{}}{:>12}{:>16}{:>10}{:>14}{:>15}\n", "file", width, "documents", "tokens counted", "loss",
             "perplexity", "bits per byte");
  const auto print = [&](const TextMeasures& one) {
    fmt::print("{:<{}}{:>12}{:>16}{:>10}{:>14}{:>15}\n", fitted(one.name, width), width, count(one.documents),
               count(one.score.counted), number(one.loss(), 4), number(one.perplexity(), 3),
               number(one.bits_per_byte(), 4));
  };
  for (const TextMeasures& one : measures) print(one);
  if (measures.size() > 1) print(sum_of(measures));
  if (std::ranges::any_of(measures, [](const TextMeasures& one) { return !one.bytes; }))
    fmt::print(
        "bits per byte are left out of token files without a tokenizer (--tokenizer), which tells their "
        "bytes, and "
        "of those with a mask\n");
}

json to_json(std::span<const TextMeasures> measures) {
  json files = json::array();
  for (const TextMeasures& one : measures) {
    files.push_back(to_json(one));
    files.back()["file"] = one.name;
  }
  return {{"files", files}, {"all", to_json(sum_of(measures))}};
}

void print_accuracies(std::span<const Questions> files, std::span<const Accuracy> accuracies) {
  const std::size_t width = width_of(files);
  fmt::print("\n{:<{}}{:>12}{:>20}{:>20}\n", "file", width, "questions", "accuracy", "normalised");
  const auto share = [](double value, double error) { return fmt::format("{:.4f} ± {:.4f}", value, error); };
  for (std::size_t k = 0; k < files.size(); ++k) {
    const Accuracy& of = accuracies[k];
    fmt::print("{:<{}}{:>12}{:>20}{:>20}\n", fitted(files[k].name, width), width, count(of.questions),
               share(of.plain, of.plain_error), share(of.normalised, of.normalised_error));
  }
}

json to_json(std::span<const Questions> files, std::span<const Accuracy> accuracies,
             std::span<const Score> scores) {
  json made = json::array();
  for (std::size_t k = 0; k < files.size(); ++k) {
    json likelihoods = json::array();
    std::int64_t cut = 0;
    for (const Question& question : files[k].questions) {
      likelihoods.push_back(scores_of(question, scores));
      cut += question.cut ? 1 : 0;
    }
    scores = scores.subspan(files[k].pieces.size());
    const Accuracy& of = accuracies[k];
    made.push_back({{"file", files[k].name},
                    {"questions", of.questions},
                    {"accuracy", of.plain},
                    {"accuracy_error", of.plain_error},
                    {"accuracy_normalised", of.normalised},
                    {"accuracy_normalised_error", of.normalised_error},
                    {"contexts_cut", cut},
                    {"log_likelihoods", likelihoods}});
  }
  return {{"files", made}};
}

}  // namespace tessera::cli
