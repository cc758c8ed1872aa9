#include "src/trainer/sample_token.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

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

}  // namespace

std::int32_t sample_token(std::span<const float> logits, double temperature, std::uint64_t seed,
                          std::uint64_t index) {
  const auto largest = std::max_element(logits.begin(), logits.end());
  check_numbers(logits, *largest);
  if (temperature == 0) return static_cast<std::int32_t>(largest - logits.begin());
  const auto weight = [&](float logit) {
    return std::exp((static_cast<double>(logit) - *largest) / temperature);
  };
  double total = 0;
  for (float logit : logits) total += weight(logit);
  constexpr std::uint64_t kStream = 0x73616D706C65;  // "sample"
  double left = uniform(seed, kStream, index) * total;
  for (std::size_t token = 0; token < logits.size(); ++token) {
    left -= weight(logits[token]);
    if (left < 0) return static_cast<std::int32_t>(token);
  }
  return static_cast<std::int32_t>(largest - logits.begin());  // rounding left a remainder
}

}  // namespace tessera
