#include "src/cli/generate/generate_command.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <iostream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "src/cli/clock.h"
#include "src/cli/generate/text_stream.h"
#include "src/cli/options.h"
#include "src/cli/output.h"
#include "src/cli/processes.h"
#include "tessera/program.h"

namespace tessera::cli {

namespace {

std::string prompt_of(const GenerateArguments& arguments) {
  if (arguments.prompt && !arguments.prompt_file.empty())
    throw UsageError("--prompt and --prompt-file are both given; give one of them");
  if (arguments.prompt) return *arguments.prompt;
  if (arguments.prompt_file.empty()) return "";
  if (arguments.prompt_file == "-" && ranks_are_processes())
    throw UsageError(
        "--prompt-file is '-', and of several processes one alone gets the standard input; name a file");
  if (arguments.prompt_file == "-")
    return {std::istreambuf_iterator<char>(std::cin), std::istreambuf_iterator<char>()};
  const std::optional<std::string> text = read_text(arguments.prompt_file);
  if (!text)
    throw EnvironmentError(
        fmt::format("--prompt-file: cannot read '{}': {}", arguments.prompt_file, std::strerror(errno)));
  return *text;
}

// The prompt's tokens. Something must be read before the first token can be made.
std::vector<std::int32_t> prompt_tokens(const GenerateArguments& arguments, const TextTokens& tokens) {
  const std::string text = prompt_of(arguments);
  std::vector<std::int32_t> prompt;
  if (!arguments.no_prefix) prompt = tokens.prefix();
  const std::vector<std::int32_t> own = tokens.encode(text, false, arguments.special);
  prompt.insert(prompt.end(), own.begin(), own.end());
  if (prompt.empty() && !arguments.no_prefix)
    if (const auto end = tokens.end_of_text()) prompt.push_back(*end);  // behind one, another text begins
  if (prompt.empty())
    throw UsageError("the prompt has no tokens; give some text by --prompt or --prompt-file");
  return prompt;
}

// The ids of generation_config.json or config.json, which may be one or a list.
std::vector<std::int32_t> ends_of_files(const KeptFiles& files, std::int64_t vocabulary) {
  for (const char* name : {"generation_config.json", kConfigFile}) {
    const auto file = files.find(name);
    if (file == files.end()) continue;
    const nlohmann::json json = nlohmann::json::parse(file->second, nullptr, false);
    if (!json.is_object() || !json.contains("eos_token_id")) continue;
    const nlohmann::json& ids = json["eos_token_id"];
    std::vector<std::int32_t> all;
    for (const nlohmann::json& id : ids.is_array() ? ids : nlohmann::json::array({ids})) {
      if (id.is_null()) continue;
      if (!id.is_number_integer() || id < 0 || id >= vocabulary)
        throw UsageError(
            fmt::format("eos_token_id of {} beside the weights is {}, which is no token of the model; "
                        "name the tokens that end a text by --end, or give --no-end",
                        name, id.dump()));
      all.push_back(id.get<std::int32_t>());
    }
    if (!all.empty()) return all;
  }
  return {};
}

// The tokens that end a text.
std::vector<std::int32_t> end_tokens(const GenerateArguments& arguments, const Inference& inference,
                                     const TextTokens& tokens) {
  if (arguments.no_end && !arguments.ends.empty())
    throw UsageError("--end and --no-end are both given; give one of them");
  if (arguments.no_end) return {};
  if (arguments.ends.empty()) {
    std::vector<std::int32_t> ends = ends_of_files(inference.files, inference.setup.model->vocabulary);
    if (ends.empty())
      if (const auto end = tokens.end_of_text()) ends.push_back(*end);
    return ends;
  }
  std::vector<std::int32_t> ends;
  for (const std::string& end : arguments.ends) {
    const std::optional<std::int32_t> id = tokens.tokenizer() ? tokens.tokenizer()->id_of(end) : std::nullopt;
    if (!id) throw UsageError(fmt::format("--end is '{}', which is no token of the tokenizer", end));
    ends.push_back(*id);
  }
  return ends;
}

// How many tokens are made, and what the cache has place for.
struct Lengths {
  std::int64_t tokens = 0, cached = 0;
};

Lengths lengths_of(const GenerateArguments& arguments, std::int64_t prompt, std::int64_t context) {
  constexpr std::int64_t kTokens = 256;
  const auto check = [](const char* name, const std::optional<std::int64_t>& value) {
    if (value && *value < 1) throw UsageError(fmt::format("{} is {}; it must be at least 1", name, *value));
  };
  check("--tokens", arguments.tokens);
  check("--length", arguments.length);
  if (arguments.length && *arguments.length > context)
    throw UsageError(fmt::format("--length is {}; the model's context is {}", *arguments.length, context));
  const std::int64_t most = arguments.length.value_or(context);
  const std::string limit =
      arguments.length ? fmt::format("--length is {}", most) : fmt::format("the model's context is {}", most);
  if (prompt >= most)
    throw UsageError(fmt::format("the prompt has {} tokens, and {}; give a shorter prompt{}", prompt, limit,
                                 arguments.length ? " or a greater --length" : ""));
  if (arguments.tokens && *arguments.tokens > most - prompt)
    throw UsageError(
        fmt::format("the prompt has {} tokens and --tokens is {}, and {}; give at most --tokens {}", prompt,
                    *arguments.tokens, limit, most - prompt));
  const std::int64_t tokens = arguments.tokens.value_or(std::min(kTokens, most - prompt));
  return {.tokens = tokens, .cached = arguments.length.value_or(prompt + tokens)};
}

// What a rank receives of parameters for each token that is made.
std::int64_t gathered_bytes(const TrainerPlan& plan, const Mesh& mesh) {
  const auto decode = std::ranges::find(plan.names, "decode") - plan.names.begin();
  const Program& program = plan.programs[static_cast<int>(decode)];
  std::int64_t bytes = 0;
  for (const Instruction& instruction : program.instructions) {
    if (instruction.op != Opcode::all_gather || instruction.channel < 0) continue;
    const Buffer& to = program.buffers[instruction.operand(Role::to).buffer];
    if (to.flat < 0) continue;
    const int ranks = mesh.extent(program.channels[instruction.channel].axis);
    bytes += to.bytes / ranks * (ranks - 1);
  }
  return bytes;
}

// Whether this command chooses that all ranks keep all parameters, if these fit; else a key says how they
// lie.
bool may_be_whole(const Config& config, const TrainerOptions& options) {
  const Strategy& strategy = options.engine.strategy;
  return !config.origins.written("strategy.stage") && strategy.offload.parameters == Space::device &&
         !strategy.state_over_replicas && !strategy.parameters_over_replicas;
}

TrainerOptions options_of(const GenerateArguments& arguments, const Inference& inference,
                          std::int64_t cached) {
  const Setup& setup = inference.setup;
  TrainerOptions options = setup.options;
  const std::int64_t rows = least_rows(*setup.model, options);
  options.batch = {.sequences = 1, .length = rows};
  options.generation = false;
  options.cached_tokens = std::max(cached, rows);
  options.prompt_rows = arguments.prompt_rows;
  if (!may_be_whole(setup.config, options)) return options;
  TrainerOptions whole = options;
  whole.engine.strategy.placements = Placements::of_stage(0);
  whole.engine.strategy.resident_units = 0;
  const std::vector<TrainerPlan> plans = plan_pipeline(*setup.model, whole);
  const MemoryBudget& budget = options.engine.budget;
  return std::ranges::all_of(plans, [&](const TrainerPlan& plan) { return budget.holds(plan.memory); })
             ? whole
             : options;
}

// A terminal gets no control character that the model made.
void show(const std::string& text) {
  const std::string shown = isatty(STDOUT_FILENO) != 0 ? escaped(text) : text;
  std::fwrite(shown.data(), 1, shown.size(), stdout);
  std::fflush(stdout);
}

struct Made {
  std::string text;
  std::vector<std::int32_t> tokens;
  std::string ended = "length";  // or "end", or "stop"
  double prompt_seconds = 0, seconds = 0;
};

// On every rank, all of which make the same text.
Made make_text(Trainer& trainer, const GenerateArguments& arguments, const TextTokens& tokens,
               const std::vector<std::int32_t>& prompt, std::int64_t count,
               const std::vector<std::int32_t>& ends, bool shows) {
  Made made;
  TextStream stream(tokens, arguments.stops, prompt);
  const Clock::time_point begin = Clock::now();
  const auto take = [&](const std::string& text) {
    made.text += text;
    if (shows) show(text);
  };
  static_cast<void>(
      trainer.generate(prompt, static_cast<int>(count), arguments.sampling, [&](std::int32_t token) {
        if (made.tokens.empty()) made.prompt_seconds = seconds_since(begin);
        if (std::ranges::find(ends, token) != ends.end()) {
          made.ended = "end";
          return false;
        }
        made.tokens.push_back(token);
        take(stream.add(token));
        if (!stream.stopped().empty()) made.ended = "stop";
        return stream.stopped().empty();
      }));
  take(stream.finish());
  made.seconds = seconds_since(begin);
  return made;
}

// Tokens in a second, behind the first, which the prompt's time has.
double rate_of(const Made& made) {
  const double seconds = made.seconds - made.prompt_seconds;
  return seconds > 0 && made.tokens.size() > 1 ? static_cast<double>(made.tokens.size() - 1) / seconds : 0.0;
}

void tell(const Made& made, std::size_t prompt) {
  const std::string rate = made.tokens.size() > 1 ? fmt::format(", {:.1f} tokens/s", rate_of(made)) : "";
  const std::string why = made.ended == "end"    ? "; ended by the end-of-text token"
                          : made.ended == "stop" ? "; ended by a stop word"
                                                 : "";
  fmt::print(stderr, "read      {} tokens in {:.2f} s\nmade      {} tokens in {:.2f} s{}{}\n", prompt,
             made.prompt_seconds, made.tokens.size(), made.seconds - made.prompt_seconds, rate, why);
}

}  // namespace

void add_generate_options(CLI::App& command, GenerateArguments& arguments) {
  command.add_option("config", arguments.model.config,
                     "TOML file with the keys of mesh, strategy, device and so on (docs/configuration.md)");
  add_inference_options(command, arguments.model);
  command.add_option("--prompt", arguments.prompt, "the text to go on from");
  command.add_option("--prompt-file", arguments.prompt_file, "a file of it; -: the standard input");
  command.add_flag("--special", arguments.special,
                   "read special tokens that the prompt spells, such as <|im_start|>, as these");
  command.add_flag("--no-prefix", arguments.no_prefix,
                   "put no token of the tokenizer's own, such as <s>, before the prompt");
  command.add_option("--tokens", arguments.tokens,
                     "how many tokens to make; by default 256, or what the context leaves");
  command.add_option("--length", arguments.length,
                     "tokens whose keys and values the cache has place for; by default prompt and --tokens");
  command
      .add_option("--prompt-rows", arguments.prompt_rows,
                  "tokens of the prompt that are read at once; more take memory")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command
      .add_option("--temperature", arguments.sampling.temperature,
                  "logits are divided by it; 0: always the likeliest token")
      ->capture_default_str();
  command
      .add_option("--top-k", arguments.sampling.top_k,
                  "draw from so many of the likeliest tokens; 0: from all")
      ->capture_default_str();
  command
      .add_option("--top-p", arguments.sampling.top_p,
                  "draw from the fewest of the likeliest tokens that have this probability together")
      ->capture_default_str();
  command.add_option("--seed", arguments.sampling.seed, "equal seeds draw equal texts")
      ->capture_default_str();
  command.add_option("--stop", arguments.stops, "a word before which the text ends; may be repeated")
      ->allow_extra_args(false);
  command
      .add_option("--end", arguments.ends,
                  "a token that ends the text, as the tokenizer spells it; may be repeated; by default "
                  "those of generation_config.json or config.json, or else the tokenizer's end of text")
      ->allow_extra_args(false);
  command.add_flag("--no-end", arguments.no_end, "no token ends the text");
}

int generate_command(const GenerateArguments& arguments, ResultFile& result) {
  check_sampling("generate", arguments.sampling);
  if (std::ranges::find(arguments.stops, "") != arguments.stops.end())
    throw UsageError("--stop is empty; give a word");
  Inference inference = make_inference(arguments.model);
  inference.budgets_choose = may_be_whole(inference.setup.config, inference.setup.options);
  const Setup& setup = inference.setup;
  if (setup.model->vocabulary == 0) throw UsageError("model.family has no tokens to generate");
  const TextTokens tokens = text_tokens(arguments.model, inference);
  const std::vector<std::int32_t> prompt = prompt_tokens(arguments, tokens);
  const std::vector<std::int32_t> ends = end_tokens(arguments, inference, tokens);
  const Lengths lengths = lengths_of(arguments, std::ssize(prompt), setup.model->max_length);
  const TrainerOptions options = options_of(arguments, inference, lengths.cached);
  const std::vector<TrainerPlan> plans = plan_pipeline(*setup.model, options);
  if (const std::string why = explain_misfit(*setup.model, options, plans); !why.empty())
    throw UsageError(why);
  result.open();
  const TrainerPlan& plan = plans[static_cast<std::size_t>(fullest_plan(plans))];
  const std::int64_t cache =
      plan.memory.space(Space::device).at_peak[static_cast<std::size_t>(Category::cache)];
  const std::int64_t gathered = gathered_bytes(plan, options.engine.mesh);
  run_inference(
      inference, options,
      [&](const InferenceRank& rank) {
        if (rank.first) {
          fmt::print(stderr, "memory    {} a rank, of which the cache of {} tokens has {}\n",
                     mib(plan.memory.space(Space::device).arena_bytes), options.cached_tokens, mib(cache));
          if (gathered > 0)
            fmt::print(stderr, "gathered  {} of parameters a rank for every token\n", mib(gathered));
          if (arguments.prompt && isatty(STDOUT_FILENO) != 0) show(*arguments.prompt);
        }
        const Made made =
            make_text(rank.trainer, arguments, tokens, prompt, lengths.tokens, ends, rank.first);
        if (!rank.first) return;
        if (isatty(STDOUT_FILENO) != 0) show("\n");
        tell(made, prompt.size());
        result.write({{"ranks", setup.world()},
                      {"prompt_tokens", prompt.size()},
                      {"tokens", made.tokens},
                      {"text", tokens.are_bytes() ? escaped(made.text) : made.text},
                      {"ended_by", made.ended},
                      {"prompt_seconds", made.prompt_seconds},
                      {"seconds", made.seconds},
                      {"tokens_per_second", rate_of(made)},
                      {"sampling",
                       {{"temperature", arguments.sampling.temperature},
                        {"top_k", arguments.sampling.top_k},
                        {"top_p", arguments.sampling.top_p},
                        {"seed", arguments.sampling.seed}}},
                      {"cached_tokens", options.cached_tokens},
                      {"cache_bytes", cache},
                      {"device_bytes", plan.memory.space(Space::device).arena_bytes},
                      {"gathered_bytes_per_token", gathered}});
      },
      stderr);
  return 0;
}

}  // namespace tessera::cli
