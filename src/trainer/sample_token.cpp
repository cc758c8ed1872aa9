#include "src/trainer/sample_token.h"

#include <algorithm>
#include <cmath>

#include "tessera/philox.h"

namespace tessera {

std::int32_t sample_token(std::span<const float> logits, double temperature, std::uint64_t seed,
                          std::uint64_t index) {
  const auto largest = std::max_element(logits.begin(), logits.end());
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
