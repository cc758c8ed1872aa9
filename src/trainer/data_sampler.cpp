#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "tessera/data.h"
#include "tessera/error.h"
#include "tessera/philox.h"

namespace tessera {
namespace {

// Of no tokens, or fewer, where they do not meet.
TokenRange common(TokenRange a, TokenRange b) {
  return {.begin = std::max(a.begin, b.begin), .end = std::min(a.end, b.end)};
}

[[noreturn]] void refuse_range(const TokenSource& source, TokenRange range, std::int64_t length) {
  const std::string few =
      fmt::format("data '{}': tokens [{}, {}) are too few for one sample: {} tokens and a target more",
                  source.name(), range.begin, range.end, length);
  const std::vector<TokenRange> files = source.files();
  if (files.size() == 1) throw UsageError(few);
  std::int64_t most = 0;
  for (const TokenRange& file : files) most = std::max(most, common(file, range).numel());
  throw UsageError(fmt::format("{}, all in one file; the longest file has {} of them", few, most));
}

}  // namespace

TokenSplit split_by_fraction(std::int64_t numel, double validation_fraction) {
  if (!(validation_fraction >= 0.0 && validation_fraction < 1.0))
    throw UsageError(fmt::format("validation fraction = {} must be from 0 to below 1", validation_fraction));
  return split_by_count(numel, static_cast<std::int64_t>(static_cast<double>(numel) * validation_fraction));
}

TokenSplit split_by_count(std::int64_t numel, std::int64_t validation_numel) {
  if (validation_numel < 0 || validation_numel >= numel)
    throw UsageError(fmt::format("validation tokens = {} must be from 0 to below the data's {} tokens",
                                 validation_numel, numel));
  const std::int64_t cut = numel - validation_numel;
  return {.train = {0, cut}, .validation = {cut, numel}};
}

Sampler::Sampler(TokenSource source, TokenRange range, const SamplerOptions& options)
    : source_(std::move(source)), options_(options) {
  if (range.begin < 0 || range.begin > range.end || range.end > source_.numel())
    throw UsageError(fmt::format("data '{}': the range [{}, {}) is outside [0, {})", source_.name(),
                                 range.begin, range.end, source_.numel()));
  if (options.length < 1)
    throw UsageError(
        fmt::format("data '{}': samples of {} tokens; at least 1 is needed", source_.name(), options.length));
  cut(range);
  if (windows_ == 0) refuse_range(source_, range, options.length);
}

void Sampler::cut(TokenRange range) {
  const std::vector<TokenRange> files = source_.files();
  for (std::size_t place = 0; place < files.size(); ++place) {
    const TokenRange part = common(files[place], range);
    if (part.numel() <= 0) continue;
    ++unread_.of;
    if (part.numel() <= options_.length) {
      unread_.names.push_back(source_.file_name(place));
      unread_.numel += part.numel();
      continue;
    }
    parts_.push_back({.first_window = windows_, .begin = part.begin});
    windows_ += (part.numel() - 1) / options_.length;
  }
}

std::int64_t Sampler::begin_of(std::int64_t window) const {
  const auto next = std::upper_bound(parts_.begin(), parts_.end(), window,
                                     [](std::int64_t w, const Part& part) { return w < part.first_window; });
  const Part& part = *std::prev(next);
  return part.begin + (window - part.first_window) * options_.length;
}

std::int64_t Sampler::window_of(std::int64_t number) const {
  if (number < 0) throw UsageError(fmt::format("data '{}': sample {} is below 0", source_.name(), number));
  if (options_.order == SampleOrder::in_order) return number < windows_ ? number : -1;
  const auto n = static_cast<std::uint64_t>(windows_);
  const auto sample = static_cast<std::uint64_t>(number);
  return static_cast<std::int64_t>(permute(sample % n, n, options_.seed, sample / n));
}

std::int64_t Sampler::read(std::int64_t first, std::span<std::int32_t> inputs,
                           std::span<std::int32_t> targets) const {
  const auto length = static_cast<std::size_t>(options_.length);
  if (inputs.size() != targets.size() || inputs.size() % length != 0)
    throw UsageError(fmt::format("data '{}': {} inputs and {} targets are not equal whole rows of {} tokens",
                                 source_.name(), inputs.size(), targets.size(), length));
  std::int64_t counted = 0;
  for (std::size_t row = 0; row < inputs.size() / length; ++row) {
    const auto input = inputs.subspan(row * length, length);
    const auto target = targets.subspan(row * length, length);
    const std::int64_t window = window_of(first + static_cast<std::int64_t>(row));
    if (window < 0) {
      std::ranges::fill(input, 0);
      std::ranges::fill(target, kNotCounted);
      continue;
    }
    const std::int64_t begin = begin_of(window);
    source_.read(begin, input);
    if (source_.masked()) {
      source_.read_targets(begin + 1, target);
      counted += options_.length - std::ranges::count(target, kNotCounted);
      continue;
    }
    source_.read(begin + options_.length, target.last(1));
    std::copy(input.begin() + 1, input.end(), target.begin());
    counted += options_.length;
  }
  return counted;
}

void Sampler::prefetch(std::int64_t first, std::int64_t count) const {
  for (std::int64_t number = first; number < first + count; ++number) {
    const std::int64_t window = window_of(number);
    if (window < 0) continue;
    const std::int64_t begin = begin_of(window);
    source_.prefetch({begin, begin + options_.length + 1});
  }
}

}  // namespace tessera
