// open_data(): the samples of a run, and what is refused of files and masks.
#include <fmt/format.h>

#include <algorithm>

#include "src/cli/config_keys.h"
#include "src/cli/setup.h"

namespace tessera::cli {

namespace {

// Larger token files are checked as they are read.
constexpr std::int64_t kChecked = std::int64_t{1} << 29;

void check_encoding(const TokenSource& train, const TokenSource& validation) {
  if ((train.encoding() == TokenEncoding::text) != (validation.encoding() == TokenEncoding::text))
    throw UsageError(fmt::format(
        "data.train '{}' holds {} and data.validation '{}' holds {}; both must be text "
        "or both tokens",
        train.name(), name_of(train.encoding()), validation.name(), name_of(validation.encoding())));
}

// `key` is the one that names the files.
TokenSource open_tokens(const char* key, const std::string& path, std::int64_t vocabulary) try {
  TokenSource source = TokenSource::open(path, vocabulary);
  if (source.encoding() != TokenEncoding::text && source.numel() * bytes_of(source.encoding()) <= kChecked)
    source.check_tokens();
  return source;
} catch (const UsageError& error) {  // of text, whose bytes the model has too few tokens for
  throw UsageError(fmt::format("{}: {}; set model.vocabulary = 256", key, error.what()));
} catch (const EnvironmentError& error) {
  throw EnvironmentError(fmt::format("{}: {}", key, error.what()));
}

// A mask must let something count. A step's weight is the number of its targets that do, which the data
// decide.
void check_mask(const char* key, const Setup& setup, const TokenSource& source, bool trains) {
  if (source.counted() == 0)
    throw UsageError(fmt::format("{}: by its masks none of the {} tokens of '{}' counts", key, source.numel(),
                                 source.name()));
  if (source.masked() && trains && setup.options.engine.strategy.update == UpdateWhen::reduced)
    throw UsageError(fmt::format(
        "strategy.update is \"reduced\", which needs to know a step's weight before it begins, and {}, '{}', "
        "has masks: how many targets count is known only as they are read; set it to \"decided\" or \"next\"",
        key, source.name()));
}

// What of data that are split for evaluation is no longer there to train on.
std::string held_back(const Setup& setup, const TokenSource& source, TokenRange range, SampleOrder order) {
  if (order != SampleOrder::shuffled || range.numel() == source.numel()) return "";
  return fmt::format("; data.validation_fraction = {} keeps {} of its {} for evaluation",
                     setup.config.data.validation_fraction, source.numel() - range.numel(), source.numel());
}

// `key` as above.
Sampler make_sampler(const char* key, const Setup& setup, const TokenSource& source, TokenRange range,
                     SampleOrder order) try {
  const std::int64_t length = setup.config.run.length;
  if (range.numel() < length + 1)
    throw UsageError(fmt::format("'{}' has {} tokens to {}; a sample of run.length = {} needs {}{}",
                                 source.name(), range.numel(),
                                 order == SampleOrder::shuffled ? "train on" : "evaluate on", length,
                                 length + 1, held_back(setup, source, range, order)));
  return Sampler(
      source, range,
      {.length = length, .order = order, .seed = static_cast<std::uint64_t>(setup.config.data.seed)});
} catch (const UsageError& error) {
  throw UsageError(fmt::format("{}: {}", key, error.what()));
}

}  // namespace

Data open_data(const Setup& setup) {
  const DataConfig& config = setup.config.data;
  const std::string& trained = trained_on(setup.config);
  if (trained.empty())
    throw UsageError("data.train is empty; name the file to train on, for example --set data.train=FILE");
  const char* const key = config.train.empty() ? "data.validation" : "data.train";
  const TokenSource train = open_tokens(key, trained, setup.model->vocabulary);
  const bool splits = config.validation.empty() && config.validation_fraction > 0.0;
  const TokenSplit split = split_by_fraction(train.numel(), splits ? config.validation_fraction : 0.0);
  Data data{.encoding = train.encoding(),
            .train = make_sampler(key, setup, train, split.train, SampleOrder::shuffled),
            .validation = std::nullopt,
            .train_identity = identity_of(train),
            .train_tokens = train.numel(),
            .train_counted = train.counted()};
  check_mask(key, setup, train, !only_evaluates(setup.config));
  std::optional<Sampler> validation;
  if (!config.validation.empty()) {
    const TokenSource other = open_tokens("data.validation", config.validation, setup.model->vocabulary);
    check_encoding(train, other);
    check_mask("data.validation", setup, other, false);
    validation = make_sampler("data.validation", setup, other, {0, other.numel()}, SampleOrder::in_order);
    data.validation_identity = identity_of(other);
  }
  if (!evaluates(setup.config)) return data;  // what is named is looked at all the same
  data.validation =
      splits ? make_sampler("data.validation_fraction", setup, train, split.validation, SampleOrder::in_order)
             : std::move(validation);
  return data;
}

std::vector<std::int32_t> prompt_tokens(const std::string& prompt, const Data& data,
                                        std::int64_t vocabulary) {
  std::vector<std::int32_t> tokens;
  if (data.encoding == TokenEncoding::text) {
    for (const char c : prompt) tokens.push_back(static_cast<unsigned char>(c));
    if (tokens.empty()) tokens.push_back('\n');
    return tokens;
  }
  const std::optional<std::vector<int>> ids = parse_integers(prompt);
  if (!ids || std::ranges::any_of(*ids, [&](int id) { return id < 0 || id >= vocabulary; }))
    throw UsageError(
        fmt::format("run.sample_prompt is \"{}\"; the data are tokens, so it must be token ids from 0 to {}, "
                    "separated by commas, such as \"464,2068\"",
                    prompt, vocabulary - 1));
  tokens.assign(ids->begin(), ids->end());
  if (tokens.empty()) tokens.push_back(0);
  return tokens;
}

void check_same_data(const Config& stored, const std::string& stored_identity, const Setup& setup,
                     const Data& data) {
  const std::string& train = setup.config.data.train;
  if (stored_identity.empty() || stored_identity == data.train_identity || stored.data.train != train) return;
  throw UsageError(fmt::format(
      "data.train, '{}', has {}; when the checkpoint in '{}' was saved it had {}: bring those files back, or "
      "name other data by another data.train",
      train, data.train_identity, setup.config.run.checkpoint, stored_identity));
}

}  // namespace tessera::cli
