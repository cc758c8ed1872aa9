// `tessera tokenizer`: trains a tokenizer, and makes token files of texts and texts of token files.
#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "src/cli/commands.h"
#include "src/cli/files.h"
#include "src/cli/options.h"
#include "src/cli/output.h"
#include "src/cli/prepare/documents.h"
#include "src/cli/prepare/text_names.h"
#include "src/cli/processes.h"
#include "tessera/data.h"
#include "tessera/error.h"
#include "tessera/tokenizer.h"

namespace tessera::cli {

namespace {

constexpr std::int64_t kBlockTokens = 1 << 20;  // read at a time

struct TokenizerArguments {
  std::vector<std::string> inputs;
  std::string tokenizer, out, between, field = "text";
  std::vector<std::string> special_tokens = {"<|endoftext|>"};
  std::int64_t vocabulary = 0;
  bool ordinary = false, around = false;
};

std::string read_input(const std::string& path) {
  std::optional<std::string> text = read_text(path);
  if (!text)
    throw EnvironmentError(fmt::format("the input '{}' cannot be read: {}", path, std::strerror(errno)));
  return *std::move(text);
}

// An output would destroy an input of the same name.
void check_apart(const TokenizerArguments& arguments) {
  std::vector<std::string> reads = arguments.inputs;
  reads.push_back(arguments.tokenizer);
  std::error_code none;
  for (const std::string& path : reads)
    if (!path.empty() && std::filesystem::equivalent(path, arguments.out, none))
      throw UsageError(fmt::format("--out is '{}', which is an input", arguments.out));
}

// The texts that `tessera data prepare` finds in these files. A build without its libraries reads plain text.
void add_texts(const std::string& path, const std::string& field, std::vector<std::string>& texts) {
  if (is_named_plain_text(path)) {
    texts.push_back(read_input(path));
    return;
  }
  Documents documents(path, {.text = field}, "tokenizer train");
  while (std::optional<Document> document = documents.next()) texts.push_back(std::move(document->text));
}

void train(const TokenizerArguments& arguments) {
  check_apart(arguments);
  OutputFile out("--out", arguments.out);
  std::vector<std::string> texts;
  for (const std::string& path : arguments.inputs) add_texts(path, arguments.field, texts);
  if (std::ranges::all_of(texts, &std::string::empty))
    throw UsageError(fmt::format("tokenizer train: there is no text in '{}'{}", arguments.inputs.front(),
                                 arguments.inputs.size() > 1 ? " and the other inputs" : ""));
  const std::string file =
      train_bpe(texts, {.vocabulary = arguments.vocabulary, .special_tokens = arguments.special_tokens});
  const std::int64_t vocabulary = Tokenizer::parse(file).vocabulary();
  out.stream() << file;
  out.commit();
  fmt::print("wrote     {}  vocabulary {}\n", arguments.out, count(vocabulary));
  if (vocabulary < arguments.vocabulary)
    fmt::print("the text has no more pairs that occur twice; --vocabulary is {}\n",
               count(arguments.vocabulary));
}

std::optional<std::int32_t> id_between(const Tokenizer& tokenizer, const std::string& token) {
  if (token.empty()) return std::nullopt;
  const std::optional<std::int32_t> id = tokenizer.id_of(token);
  if (!id) throw UsageError(fmt::format("--between is '{}', which is no token of the tokenizer", token));
  return id;
}

void encode(const TokenizerArguments& arguments) {
  check_apart(arguments);
  const Tokenizer tokenizer = Tokenizer::open(arguments.tokenizer);
  const std::optional<std::int32_t> between = id_between(tokenizer, arguments.between);
  const bool is_small = tokenizer.vocabulary() <= std::numeric_limits<std::uint16_t>::max() + std::int64_t{1};
  TokenWriter writer(arguments.out, is_small ? TokenEncoding::uint16 : TokenEncoding::uint32);
  const EncodeOptions options = {.add_special_tokens = arguments.around,
                                 .find_special_tokens = !arguments.ordinary};
  std::int64_t tokens = 0, bytes = 0;
  for (const std::string& path : arguments.inputs) {
    const std::string text = read_input(path);
    std::vector<std::int32_t> ids = tokenizer.encode(text, options);
    if (between) ids.push_back(*between);
    writer.append(ids);
    tokens += static_cast<std::int64_t>(ids.size());
    bytes += static_cast<std::int64_t>(text.size());
  }
  writer.finish();
  fmt::print("wrote     {}  {} tokens of {} bytes, vocabulary {}\n", arguments.out, count(tokens),
             count(bytes), count(tokenizer.vocabulary()));
}

void decode(const TokenizerArguments& arguments) {
  check_apart(arguments);
  const Tokenizer tokenizer = Tokenizer::open(arguments.tokenizer);
  const TokenSource source = TokenSource::open(arguments.inputs.front(), tokenizer.vocabulary());
  if (source.encoding() == TokenEncoding::text)
    throw UsageError(fmt::format("the input '{}' is text; a token file is wanted", arguments.inputs.front()));
  if (source.numel() > std::numeric_limits<std::int32_t>::max())
    throw UsageError(fmt::format("the input '{}' has more than 2^31 tokens", arguments.inputs.front()));
  OutputFile out("--out", arguments.out);
  std::vector<std::int32_t> ids(static_cast<std::size_t>(source.numel()));
  for (std::int64_t begin = 0; begin < source.numel(); begin += kBlockTokens) {
    const std::int64_t tokens = std::min(kBlockTokens, source.numel() - begin);
    source.read(begin,
                std::span(ids).subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(tokens)));
  }
  out.stream() << tokenizer.decode(ids);
  out.commit();
}

CLI::App* add(CLI::App& parent, const char* name, const char* help, void (*run)(const TokenizerArguments&),
              const std::shared_ptr<TokenizerArguments>& arguments) {
  CLI::App* command = parent.add_subcommand(name, help);
  command->callback([run, arguments] {
    if (!left_to_first_process()) run(*arguments);
  });
  return command;
}

void add_out(CLI::App& command, TokenizerArguments& arguments, const char* help) {
  command.add_option("--out", arguments.out, help)->required()->check(kOutput);
}

void add_tokenizer_argument(CLI::App& command, TokenizerArguments& arguments) {
  command.add_option("tokenizer", arguments.tokenizer, "a tokenizer.json, or a folder that has one")
      ->required();
}

void add_inputs(CLI::App& command, TokenizerArguments& arguments, const char* help) {
  command.add_option("inputs", arguments.inputs, help)->required();
}

}  // namespace

void add_tokenizer_commands(CLI::App& app) {
  const auto arguments = std::make_shared<TokenizerArguments>();
  CLI::App* tokenizer = app.add_subcommand("tokenizer", "Train a tokenizer, or make token files with one");
  tokenizer->require_subcommand(1);

  CLI::App* training = add(*tokenizer, "train", "Train a byte-level BPE on texts", train, arguments);
  add_inputs(*training, *arguments,
             "files of text, in UTF-8, or of JSON lines (.jsonl, .ndjson); .gz and .zst too");
  training
      ->add_option("--vocabulary", arguments->vocabulary,
                   "number of ids, special tokens and 256 bytes included")
      ->required();
  training->add_option("--special", arguments->special_tokens, "special tokens, which get the first ids")
      ->always_capture_default();
  training->add_option("--field", arguments->field, "the member of a JSON line that has its text")
      ->always_capture_default();
  add_out(*training, *arguments, "the tokenizer.json to write");

  CLI::App* encoding = add(*tokenizer, "encode", "Make a token file of texts", encode, arguments);
  add_tokenizer_argument(*encoding, *arguments);
  add_inputs(*encoding, *arguments, "files of text, in UTF-8");
  encoding->add_option("--between", arguments->between,
                       "a token to put behind each input, such as <|endoftext|>");
  encoding->add_flag("--ordinary", arguments->ordinary, "read special tokens in the texts as ordinary text");
  encoding->add_flag("--around", arguments->around,
                     "put the tokenizer's own tokens around each input, such as <s>");
  add_out(*encoding, *arguments, "the token file to write, which data.train can name (.bin)");

  CLI::App* decoding = add(*tokenizer, "decode", "Make a text of a token file", decode, arguments);
  add_tokenizer_argument(*decoding, *arguments);
  decoding->add_option("input", arguments->inputs, "a token file")->required()->expected(1);
  add_out(*decoding, *arguments, "the text file to write; /dev/stdout prints it");
}

}  // namespace tessera::cli
