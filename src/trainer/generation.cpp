// Trainer's verbs that make text.
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <utility>

#include "src/trainer/sample_token.h"
#include "src/trainer/trainer_impl.h"

namespace tessera {

void Trainer::Impl::check_planned(const char* call) const {
  if (!options.generation)
    throw UsageError(fmt::format("{}: TrainerOptions::generation is false, so no program was planned", call));
}

std::vector<std::int32_t> Trainer::generate(std::vector<std::int32_t> prompt, int count, double temperature,
                                            std::uint64_t seed,
                                            const std::function<void(std::int32_t)>& each) {
  // First whether all gave the same: what means nothing is then refused by all of them.
  impl_->check_planned("generate");
  impl_->agree("generate", "count", static_cast<std::uint64_t>(count));
  impl_->agree("generate", "temperature", std::bit_cast<std::uint64_t>(temperature));
  impl_->agree("generate", "seed", seed);
  impl_->agree_on_tokens("generate", "prompt", prompt);
  if (count < 0) throw UsageError(fmt::format("generate: count is {}; it must be 0 or more", count));
  if (!(temperature >= 0) || !std::isfinite(temperature))
    throw UsageError(
        fmt::format("generate: temperature is {}; it must be 0 or a finite positive number", temperature));
  std::vector<std::int32_t> text = std::move(prompt);
  for (int made = 0; made < count; ++made) {
    text.push_back(sample_token(logits(text), temperature, seed, static_cast<std::uint64_t>(made)));
    if (each) each(text.back());
  }
  return text;
}

std::vector<float> Trainer::logits(std::span<const std::int32_t> tokens) {
  Impl& impl = *impl_;
  impl.check_planned("logits");
  impl.agree_on_tokens("logits", "tokens", tokens);
  const auto length = static_cast<std::size_t>(generation_shape(impl.options).length);
  const auto context = tokens.last(std::min(length, tokens.size()));
  std::vector<float> logits(static_cast<std::size_t>(impl.model->vocabulary));
  const struct Wanted {  // also where the program is refused
    Impl& impl;
    ~Wanted() { impl.logits = nullptr; }
  } wanted{impl};
  impl.logits = logits.data();
  impl.logits_row = static_cast<std::int64_t>(context.size()) - 1;
  impl.run(impl.programs.generate, 0.0, [&](int, void* batch) {
    auto* inputs = static_cast<std::int32_t*>(batch);
    std::fill_n(inputs, length, 0);
    std::copy(context.begin(), context.end(), inputs);
    std::fill_n(inputs + length, length, -1);  // nothing is counted
  });
  const Mesh& mesh = impl.options.engine.mesh;
  for (int place = 0; place < mesh.tensor && mesh.pipeline * mesh.tensor > 1; ++place) {
    const ElementRange part = impl.logits_of(place);
    impl.results.broadcast(logits.data() + part.begin, 4 * part.numel(),
                           mesh.rank({mesh.pipeline - 1, 0, 0, place}), {.operation = "logits"});
  }
  return logits;
}

}  // namespace tessera
