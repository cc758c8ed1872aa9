#include "src/cli/evaluate/evaluate_command.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <system_error>

#include "src/cli/clock.h"
#include "src/cli/evaluate/evaluate_report.h"
#include "src/cli/options.h"
#include "src/cli/output.h"
#include "src/cli/processes.h"
#include "src/cli/work_progress.h"

namespace tessera::cli {

namespace {

// The work of a command, and what came of it.
struct Measured {
  std::vector<Score> scores;  // by piece
  std::int64_t tokens = 0;    // computed on, without padding
  double seconds = 0.0;
};

EvaluateArguments with_config(EvaluateArguments arguments) {
  if (!arguments.files.front().ends_with(".toml")) return arguments;
  arguments.model.config = arguments.files.front();
  arguments.files.erase(arguments.files.begin());
  if (arguments.files.empty())
    throw UsageError(fmt::format("evaluate: '{}' is the configuration; name a file to evaluate behind it",
                                 escaped(arguments.model.config)));
  return arguments;
}

void check_apart(const EvaluateArguments& arguments, const NamedFile& output) {
  std::error_code none;
  for (const std::string& file : arguments.files)
    if (!output.path.empty() && std::filesystem::equivalent(file, output.path, none))
      throw RefusedOutput(fmt::format("{} is '{}', which is an input", output.key, output.path));
}

// None where there are only token files, whose bytes are then not known.
std::optional<TextTokens> tokens_of(const EvaluateArguments& arguments, const Inference& inference) {
  const bool only_tokens = !arguments.choices && std::ranges::all_of(arguments.files, is_named_token_file);
  const bool known = !arguments.model.tokenizer.empty() || inference.files.contains(kTokenizerFile);
  if (only_tokens && !known && inference.setup.model->vocabulary != 256) return std::nullopt;
  return text_tokens(arguments.model, inference);
}

Measured measure(const Inference& inference, std::span<const TokenStore> stores,
                 std::span<const Piece> pieces) {
  const Setup& setup = inference.setup;
  const std::vector<BatchShape> shapes = shapes_for(pieces, setup.options.batch);
  Measured measured;
  if (shapes.empty()) return measured;  // no text has a second token
  TrainerOptions options = setup.options;
  options.scored = shapes;
  options.batch = shapes.front();
  for (const Piece& piece : pieces) measured.tokens += piece.length;
  run_inference(inference, options, [&](const InferenceRank& rank) {
    WorkProgress progress("evaluated");
    const Clock::time_point start = Clock::now();
    std::vector<Score> scores = score(rank, shapes, stores, pieces, [&](std::int64_t tokens) {
      progress.show(tokens, measured.tokens, [&](double seconds) {
        return fmt::format("{} of {} tokens  {:.0f} tokens/s", count(tokens), count(measured.tokens),
                           static_cast<double>(tokens) / seconds);
      });
    });
    if (!rank.first) return;
    progress.finish();
    measured.scores = std::move(scores);
    measured.seconds = seconds_since(start);
  });
  return measured;
}

void print_start(const EvaluateArguments& arguments, const Setup& setup, std::int64_t stride) {
  fmt::print("{} parameters, {} rank{}{}, stage {}, {}\n", count(setup.model->parameter_numel()),
             setup.world(), setup.world() == 1 ? "" : "s", ranks_are_processes() ? " as processes" : "",
             setup.config.strategy.stage, setup.config.precision.parameters);
  if (arguments.choices) return;
  fmt::print("windows   of {} tokens, {} tokens apart\n", setup.config.run.length, stride);
}

nlohmann::json with_run(nlohmann::json result, const Inference& inference, const Measured& measured) {
  const Setup& setup = inference.setup;
  result["ranks"] = setup.world();
  result["length"] = setup.config.run.length;
  result["weights"] = inference.weights.string();
  result["checkpoint"] = inference.checkpoint.string();
  result["seconds"] = measured.seconds;
  result["tokens_per_second"] = static_cast<double>(measured.tokens) / std::max(measured.seconds, 1e-9);
  result["configuration"] = to_toml(setup.config);
  return result;
}

nlohmann::json evaluate_texts(const EvaluateArguments& arguments, const Inference& inference,
                              std::int64_t stride) {
  const Setup& setup = inference.setup;
  const EvaluatedFiles all = read_files(
      arguments.files, tokens_of(arguments, inference),
      {.field = arguments.field, .prefix = !arguments.no_prefix, .vocabulary = setup.model->vocabulary});
  std::vector<Piece> pieces;
  std::vector<std::size_t> ends;  // of each file's pieces
  for (std::size_t k = 0; k < all.files.size(); ++k) {
    const std::vector<Piece> own =
        windows_of(all.files[k], static_cast<std::int32_t>(k), setup.config.run.length, stride);
    pieces.insert(pieces.end(), own.begin(), own.end());
    ends.push_back(pieces.size());
  }
  const Measured measured = measure(inference, all.stores, pieces);
  if (!is_first_process()) return {};
  std::vector<TextMeasures> measures;
  for (std::size_t k = 0; k < all.files.size(); ++k) {
    const EvaluatedFile& file = all.files[k];
    measures.push_back({.name = file.name,
                        .documents = file.documents,
                        .tokens = file.tokens,
                        .bytes = file.bytes,
                        .score = {}});
    for (std::size_t at = k == 0 ? 0 : ends[k - 1]; at < ends[k]; ++at) {
      measures.back().score.loss += measured.scores[at].loss;
      measures.back().score.counted += measured.scores[at].counted;
    }
  }
  print_measures(measures);
  nlohmann::json result = to_json(measures);
  result["stride"] = stride;
  return with_run(std::move(result), inference, measured);
}

nlohmann::json evaluate_questions(const EvaluateArguments& arguments, const Inference& inference) {
  const TextTokens text = text_tokens(arguments.model, inference);
  const QuestionText how = {.between = arguments.between,
                            .prefix = !arguments.no_prefix,
                            .length = inference.setup.config.run.length};
  std::vector<Questions> files;
  std::vector<TokenStore> stores;
  std::vector<Piece> pieces;
  for (const std::string& name : arguments.files) {
    files.push_back(read_questions(name, static_cast<std::int32_t>(files.size()), text, how));
    stores.push_back(files.back().store);
    pieces.insert(pieces.end(), files.back().pieces.begin(), files.back().pieces.end());
  }
  const Measured measured = measure(inference, stores, pieces);
  if (!is_first_process()) return {};
  std::vector<Accuracy> accuracies;
  std::span<const Score> scores = measured.scores;
  for (const Questions& of : files) {
    accuracies.push_back(accuracy_of(of, scores));
    scores = scores.subspan(of.pieces.size());
  }
  print_accuracies(files, accuracies);
  for (const Questions& of : files)
    if (const auto cut = std::ranges::count_if(of.questions, &Question::cut); cut > 0)
      fmt::print(
          "cut       {} of {} contexts of {} from the left: they are longer than run.length, {} tokens\n",
          cut, of.questions.size(), escaped(of.name), how.length);
  return with_run(to_json(files, accuracies, measured.scores), inference, measured);
}

}  // namespace

void add_evaluate_options(CLI::App& command, EvaluateArguments& arguments) {
  command
      .add_option(
          "files", arguments.files,
          "files of text, of JSON lines (.jsonl, .ndjson), both also as .gz or .zst, or of tokens (.bin); "
          "a first one that ends in .toml is the configuration (docs/configuration.md)")
      ->required();
  add_inference_options(command, arguments.model);
  command.add_option("--field", arguments.field, "the member of a JSON line that has its text")
      ->capture_default_str();
  command
      .add_option("--stride", arguments.stride,
                  "tokens from one window to the next, of which each counts its last; by default run.length")
      ->check(CLI::PositiveNumber);
  command.add_flag("--choices", arguments.choices,
                   "files are multiple-choice questions: JSON lines with context, choices and answer");
  command.add_option("--between", arguments.between, "text between context and choice")
      ->default_str("a blank");
  command.add_flag("--no-prefix", arguments.no_prefix,
                   "leave out the tokens that the tokenizer puts in front of a text, such as <s>");
}

int evaluate_command(const EvaluateArguments& given, ResultFile& result) {
  const EvaluateArguments arguments = with_config(given);
  check_apart(arguments, result.named());
  const Inference inference = make_inference(arguments.model);
  const Setup& setup = inference.setup;
  const std::int64_t length = setup.config.run.length;
  const std::int64_t stride = arguments.stride == 0 ? length : arguments.stride;
  if (arguments.choices && arguments.stride > 0)
    throw UsageError("--stride is given with --choices, which has no windows; leave it out");
  if (stride > length)
    throw UsageError(with_origins(
        fmt::format("--stride is {}; it must be at most run.length, {}, or tokens between windows would not "
                    "count",
                    stride, length),
        setup.config));
  result.open();
  if (is_first_process()) print_start(arguments, setup, stride);
  const nlohmann::json made = arguments.choices ? evaluate_questions(arguments, inference)
                                                : evaluate_texts(arguments, inference, stride);
  if (is_first_process()) result.write(made);
  return 0;
}

}  // namespace tessera::cli
