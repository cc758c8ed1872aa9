// `tessera data prepare`: text into token files.
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <tuple>

#include "src/cli/commands.h"
#include "src/cli/options.h"
#include "src/cli/output.h"
#include "src/cli/prepare/prepare.h"
#include "src/cli/processes.h"
#include "src/cli/work_progress.h"
#include "tessera/data.h"
#include "tessera/machine.h"

namespace tessera::cli {

namespace {

std::string side_text(const char* name, const PreparedSplit& split) {
  const std::string tail = split.files.size() > 1 ? fmt::format(" to {}", split.files.back()) : "";
  const std::string counted =
      split.counted == split.tokens
          ? ""
          : fmt::format(", {} of which count ({:.1f} %),", count(split.counted),
                        100.0 * static_cast<double>(split.counted) / static_cast<double>(split.tokens));
  return fmt::format("{:<12}{} tokens{} in {} document{}, {}{}\n", name, count(split.tokens), counted,
                     count(split.documents), split.documents == 1 ? "" : "s",
                     split.files.empty() ? "no file" : split.files.front(), tail);
}

void prepare_data(PrepareOptions options) {
  if (options.threads == 0) options.threads = std::max(1, static_cast<int>(allowed_cores().size()));
  WorkProgress progress("encoded");
  const Prepared made = prepare(
      options,
      [&](std::int64_t done, std::int64_t all) {
        progress.show(done, all, [&](double seconds) {
          return fmt::format("{} of {}  {:.1f} MB/s", mib(done), mib(all),
                             static_cast<double>(done) / seconds / 1e6);
        });
      },
      [&](const std::string& note) {
        progress.finish();
        fmt::print("{}\n", escaped(note));
      });
  progress.finish();
  fmt::print("{}{}", side_text("train", made.train), side_text("validation", made.validation));
  const std::int64_t tokens = made.train.tokens + made.validation.tokens;
  fmt::print("{:.2f} bytes of text a token; train on them with\n  data.train = \"{}/train_*.bin\"\n",
             static_cast<double>(made.text_bytes) / static_cast<double>(tokens), escaped(options.out));
  if (!made.validation.files.empty())
    fmt::print("  data.validation = \"{}/validation_*.bin\"\n", escaped(options.out));
  fmt::print("  model.vocabulary = {}, or more\n", made.vocabulary);
}

constexpr std::int64_t kAnyVocabulary = std::int64_t{1} << 31;

void show_data(const std::string& path) {
  const TokenSource source = TokenSource::open(path, kAnyVocabulary);
  const std::vector<TokenRange> files = source.files();
  for (std::size_t k = 0; k < files.size(); ++k)
    fmt::print("file        {}  {} tokens\n", escaped(source.file_name(k)), count(files[k].numel()));
  fmt::print("tokens      {}, each of {}\n", count(source.numel()), name_of(source.encoding()));
  fmt::print("targets     {} count{}\n", count(source.counted()),
             source.masked()
                 ? fmt::format(", by masks: {:.1f} %", 100.0 * static_cast<double>(source.counted()) /
                                                           static_cast<double>(source.numel()))
                 : ", all");
  fmt::print("identity    {}\n", identity_of(source));
}

void add_info(CLI::App& data) {
  const auto path = std::make_shared<std::string>();
  CLI::App* command = data.add_subcommand("info", "Show what data files hold, and how many targets count");
  command
      ->add_option("files", *path, "a file, or a pattern such as 'data/train_*.bin', as data.train names it")
      ->required();
  command->callback([path] {
    if (!left_to_first_process()) show_data(*path);
  });
}

}  // namespace

void add_data_commands(CLI::App& app) {
  const auto options = std::make_shared<PrepareOptions>();
  options->threads = 0;
  CLI::App* data = app.add_subcommand("data", "Make data to train on, or look at them");
  data->require_subcommand(1);
  add_info(*data);
  CLI::App* command =
      data->add_subcommand("prepare", "Text or JSON lines into token files, shuffled and split");
  command
      ->add_option("input", options->inputs,
                   "files of text, each a document, or of JSON lines (.jsonl, .ndjson); .gz and .zst too")
      ->required();
  command->add_option("--tokenizer", options->tokenizer, "a tokenizer.json, or a folder that has one")
      ->required();
  command->add_option("--out", options->out, "the folder of the result; one that was interrupted goes on")
      ->required()
      ->check(kOutput);
  command->option_defaults()->always_capture_default();
  CLI::Option* field =
      command->add_option("--field", options->fields.text, "the member of a JSON line that has its text");
  for (const auto& [name, value, of] :
       {std::tuple("--prompt-field", &options->fields.prompt, "prompt, which is not trained on"),
        {"--answer-field", &options->fields.answer, "answer, which alone counts in the loss"}})
    command->add_option(name, *value, fmt::format("the member of a JSON line that has its {}", of))
        ->default_str("")
        ->excludes(field);
  command->add_option("--validation", options->validation, "share of the documents to validate on");
  command->add_option("--seed", options->seed, "of the order of documents");
  command->add_option("--shard-tokens", options->shard_tokens,
                      "most tokens of one file, but for a longer document");
  command
      ->add_option("--end-of-text", options->end_of_text,
                   "the token behind each document; by default <|endoftext|>, <|end_of_text|> or </s>")
      ->default_str("");
  command->add_option("--threads", options->threads, "threads that encode; by default one for each core")
      ->default_str("")
      ->check(CLI::Range(1, 4096));
  command->callback([options] {
    if (!left_to_first_process()) prepare_data(*options);
  });
}

}  // namespace tessera::cli
