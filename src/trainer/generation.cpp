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

void Trainer::Impl::bring_logits(std::vector<float>& row) {
  const Mesh& mesh = options.engine.mesh;
  for (int place = 0; place < mesh.tensor && mesh.pipeline * mesh.tensor > 1; ++place) {
    const ElementRange part = logits_of(place);
    results.broadcast(row.data() + part.begin, 4 * part.numel(), mesh.rank({mesh.pipeline - 1, 0, 0, place}),
                      {.operation = "logits"});
  }
}

namespace {

// Takes a trainer's logits for as long as it lives, also where a program is refused.
struct Wanted {
  Wanted(float*& of_trainer, float* to) : logits(of_trainer) { logits = to; }
  ~Wanted() { logits = nullptr; }
  Wanted(const Wanted&) = delete;
  Wanted& operator=(const Wanted&) = delete;
  float*& logits;
};

// The inputs of a batch of one sequence, of which no target is counted.
void put_inputs(std::span<const std::int32_t> tokens, std::int64_t length, void* batch) {
  auto* inputs = static_cast<std::int32_t*>(batch);
  std::fill_n(inputs, length, 0);
  std::copy(tokens.begin(), tokens.end(), inputs);
  std::fill_n(inputs + length, length, -1);
}

}  // namespace

void Trainer::Impl::forget_if_changed() {
  if (engine.changes() != cached_at) cached.clear();
  cached_at = engine.changes();
}

void Trainer::Impl::read(std::span<const std::int32_t> text, float* logits_of_next) {
  const auto shape_of = [&](int program) -> const BatchShape& {
    return programs.shapes[static_cast<std::size_t>(program)];
  };
  while (cached.size() < text.size()) {
    // A step of few rows takes little more than the time to read the weights; one of many computes for
    // longer.
    constexpr std::int64_t kFew = 4;
    const auto left = static_cast<std::int64_t>(text.size() - cached.size());
    const int program = left <= kFew * shape_of(programs.decode).length ? programs.decode : programs.prefill;
    const BatchShape& rows = shape_of(program);
    // Where too little of the cache is left for all rows, some tokens are read a second time.
    position = std::min(static_cast<std::int64_t>(cached.size()), rows.cached - rows.length);
    const auto first = static_cast<std::size_t>(position);
    const std::size_t last = std::min(text.size(), first + static_cast<std::size_t>(rows.length));
    const std::span<const std::int32_t> now = text.subspan(first, last - first);
    const Wanted wanted(logits, last == text.size() ? logits_of_next : nullptr);
    logits_row = static_cast<std::int64_t>(now.size()) - 1;
    run_uses(program, {}, [&](int, void* batch) { put_inputs(now, rows.length, batch); });
    engine.end_evaluation();
    const auto added = text.subspan(cached.size(), last - cached.size());
    cached.insert(cached.end(), added.begin(), added.end());
  }
}

std::vector<float> Trainer::extend(std::span<const std::int32_t> tokens) {
  Impl& impl = *impl_;
  if (impl.programs.decode < 0)
    throw UsageError("extend: TrainerOptions::cached_tokens is 0, so no program was planned");
  impl.forget_if_changed();
  std::vector<std::int32_t> text = impl.cached;
  text.insert(text.end(), tokens.begin(), tokens.end());
  impl.agree_on_tokens("extend", "tokens, or tokens before them,", text, impl.cached.size());
  if (static_cast<std::int64_t>(text.size()) > impl.options.cached_tokens)
    throw UsageError(fmt::format("extend: {} tokens behind {} are {}; the cache has place for {}",
                                 tokens.size(), impl.cached.size(), text.size(), impl.options.cached_tokens));
  std::vector<float> row(static_cast<std::size_t>(impl.model->vocabulary));
  impl.read(text, row.data());
  impl.bring_logits(row);
  return row;
}

void Trainer::rewind(std::int64_t count) {
  impl_->forget_if_changed();
  std::vector<std::int32_t>& cached = impl_->cached;
  if (count < 0 || count > static_cast<std::int64_t>(cached.size()))
    throw UsageError(fmt::format("rewind: count is {}; the cache has {} tokens", count, cached.size()));
  cached.resize(static_cast<std::size_t>(count));
}

std::span<const std::int32_t> Trainer::cached() const {
  if (impl_->engine.changes() != impl_->cached_at) return {};
  return impl_->cached;
}

std::vector<std::int32_t> Trainer::generate(std::vector<std::int32_t> prompt, int count,
                                            const Sampling& sampling,
                                            const std::function<bool(std::int32_t)>& goes_on) {
  // First whether all gave the same: what means nothing is then refused by all of them.
  const bool caches = impl_->programs.decode >= 0;
  if (!caches) impl_->check_planned("generate");
  impl_->agree("generate", "count", static_cast<std::uint64_t>(count));
  impl_->agree("generate", "temperature", std::bit_cast<std::uint64_t>(sampling.temperature));
  impl_->agree("generate", "top_k", static_cast<std::uint64_t>(sampling.top_k));
  impl_->agree("generate", "top_p", std::bit_cast<std::uint64_t>(sampling.top_p));
  impl_->agree("generate", "seed", sampling.seed);
  impl_->agree_on_tokens("generate", "prompt", prompt);
  if (count < 0) throw UsageError(fmt::format("generate: count is {}; it must be 0 or more", count));
  check_sampling("generate", sampling);
  if (caches && static_cast<std::int64_t>(prompt.size()) + count > impl_->options.cached_tokens)
    throw UsageError(
        fmt::format("generate: the prompt has {} tokens and count is {}; the cache has place for {} in all",
                    prompt.size(), count, impl_->options.cached_tokens));
  std::vector<std::int32_t> text = std::move(prompt);
  if (caches && count > 0) {
    impl_->forget_if_changed();
    // What follows needs the logits behind the prompt's last token.
    const auto [ours, theirs] = std::ranges::mismatch(impl_->cached, text);
    rewind(std::min(ours - impl_->cached.begin(), std::ssize(text) - 1));
  }
  for (int made = 0; made < count; ++made) {
    const std::vector<float> row =
        caches ? extend(std::span(text).subspan(impl_->cached.size())) : logits(text);
    text.push_back(sample_token(row, sampling, static_cast<std::uint64_t>(made)));
    if (goes_on && !goes_on(text.back())) break;
  }
  return text;
}

std::vector<float> Trainer::logits(std::span<const std::int32_t> tokens) {
  Impl& impl = *impl_;
  impl.check_planned("logits");
  impl.agree_on_tokens("logits", "tokens", tokens);
  const std::int64_t length = generation_shape(impl.options).length;
  const auto context = tokens.last(std::min(static_cast<std::size_t>(length), tokens.size()));
  std::vector<float> row(static_cast<std::size_t>(impl.model->vocabulary));
  const Wanted wanted(impl.logits, row.data());
  impl.logits_row = static_cast<std::int64_t>(context.size()) - 1;
  impl.run(impl.programs.generate, 0.0, [&](int, void* batch) { put_inputs(context, length, batch); });
  impl.bring_logits(row);
  return row;
}

}  // namespace tessera
