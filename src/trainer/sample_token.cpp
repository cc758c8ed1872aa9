#include "src/trainer/sample_token.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <ranges>
#include <vector>

#include "tessera/error.h"
#include "tessera/philox.h"

namespace tessera {
namespace {

// Nothing follows from others: they compare with none.
void check_numbers(std::span<const float> logits, float largest) {
  const auto is_nan = [](float logit) { return std::isnan(logit); };
  const auto nans = std::ranges::count_if(logits, is_nan);
  if (nans > 0 || !std::isfinite(largest))
    throw Error(fmt::format(
        "generate: of {} logits {} are not numbers and the largest is {}; a token is drawn from finite "
        "ones only: look at the model's weights",
        logits.size(), nans, largest));
}

// The first tokens of those ranked, as many as can be drawn. `weight` of a token is its probability but for a
// factor.
template <class Weight>
std::vector<std::int32_t> first_tokens(std::span<const float> logits, const Sampling& sampling,
                                       const Weight& weight) {
  std::vector<std::int32_t> tokens(logits.size());
  std::iota(tokens.begin(), tokens.end(), 0);
  const auto is_before = [&](std::int32_t a, std::int32_t b) {
    return logits[static_cast<std::size_t>(a)] != logits[static_cast<std::size_t>(b)]
               ? logits[static_cast<std::size_t>(a)] > logits[static_cast<std::size_t>(b)]
               : a < b;
  };
  const auto weight_of = [&](std::int32_t token) { return weight(logits[static_cast<std::size_t>(token)]); };
  if (sampling.top_k > 0 && static_cast<std::size_t>(sampling.top_k) < tokens.size()) {
    std::ranges::nth_element(tokens, tokens.begin() + sampling.top_k, is_before);
    tokens.resize(static_cast<std::size_t>(sampling.top_k));
  }
  if (sampling.top_p == 1.0) {
    std::ranges::sort(tokens, is_before);
    return tokens;
  }
  double total = 0;
  for (const std::int32_t token : tokens) total += weight_of(token);
  // Ranked by stretches that grow: of a large vocabulary few tokens are needed.
  double sum = 0;
  std::size_t ranked = 0;
  for (std::size_t more = 64; ranked < tokens.size(); more *= 4) {
    const std::size_t end = std::min(ranked + more, tokens.size());
    std::ranges::partial_sort(tokens.begin() + static_cast<std::ptrdiff_t>(ranked),
                              tokens.begin() + static_cast<std::ptrdiff_t>(end), tokens.end(), is_before);
    for (; ranked < end; ++ranked) {
      sum += weight_of(tokens[ranked]);
      if (sum < sampling.top_p * total) continue;
      tokens.resize(ranked + 1);
      return tokens;
    }
  }
  return tokens;  // rounding left a remainder
}

}  // namespace

void check_sampling(const char* call, const Sampling& sampling) {
  const auto refuse = [&](const char* field, const auto& value, const char* needed) {
    throw UsageError(fmt::format("{}: {} is {}; it must be {}", call, field, value, needed));
  };
  if (!(sampling.temperature >= 0) || !std::isfinite(sampling.temperature))
    refuse("temperature", sampling.temperature, "0 or a finite positive number");
  if (sampling.top_k < 0) refuse("top_k", sampling.top_k, "0 or more");
  if (!(sampling.top_p > 0 && sampling.top_p <= 1)) refuse("top_p", sampling.top_p, "above 0 and at most 1");
}

std::int32_t sample_token(std::span<const float> logits, const Sampling& sampling, std::uint64_t index) {
  const auto largest = std::max_element(logits.begin(), logits.end());
  check_numbers(logits, *largest);
  const auto first = static_cast<std::int32_t>(largest - logits.begin());
  if (sampling.temperature == 0) return first;
  const auto weight = [&](float logit) {
    return std::exp((static_cast<double>(logit) - *largest) / sampling.temperature);
  };
  constexpr std::uint64_t kStream = 0x73616D706C65;  // "sample"
  const double drawn = uniform(sampling.seed, kStream, index);
  const auto draw = [&](const auto& tokens) {
    double total = 0;
    for (const auto token : tokens) total += weight(logits[static_cast<std::size_t>(token)]);
    double left = drawn * total;
    for (const auto token : tokens) {
      left -= weight(logits[static_cast<std::size_t>(token)]);
      if (left < 0) return static_cast<std::int32_t>(token);
    }
    return first;  // rounding left a remainder
  };
  if (sampling.top_k == 0 && sampling.top_p == 1.0)
    return draw(std::views::iota(std::size_t{0}, logits.size()));
  return draw(first_tokens(logits, sampling, weight));
}

}  // namespace tessera
