#include "src/cli/evaluate/questions.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "src/cli/output.h"
#include "src/cli/prepare/text_lines.h"
#include "tessera/error.h"

namespace tessera::cli {

namespace {

using nlohmann::json;

struct Line {
  std::string context;
  std::vector<std::string> choices;
  std::size_t answer = 0;
};

std::string text_in(const TextLines& lines, const json& value, std::string_view where) {
  if (!value.is_string()) lines.refuse(fmt::format("has {} that is no text", where));
  return value.get<std::string>();
}

const json& field_in(const TextLines& lines, const json& line, const char* name) {
  const auto found = line.find(name);
  if (found == line.end())
    lines.refuse(
        fmt::format("has no field '{}'; a question has \"context\", \"choices\" and \"answer\"", name));
  return *found;
}

std::size_t answer_in(const TextLines& lines, const json& answer, const std::vector<std::string>& choices) {
  if (answer.is_number_integer()) {
    if (answer < 0 || answer >= choices.size())
      lines.refuse(
          fmt::format("has \"answer\" {}; there are {} choices: it must be 0 to {}, or a choice's text",
                      answer.dump(), choices.size(), choices.size() - 1));
    return answer.get<std::size_t>();
  }
  if (!answer.is_string())
    lines.refuse(
        fmt::format("has \"answer\" {}, which is neither an index nor a choice's text", answer.dump()));
  const std::string text = answer.get<std::string>();
  const auto found = std::ranges::find(choices, text);
  if (found == choices.end())
    lines.refuse(fmt::format("has \"answer\" \"{}\", which is none of its choices", escaped(text)));
  if (std::ranges::count(choices, text) > 1)
    lines.refuse(
        fmt::format("has \"answer\" \"{}\", which is several of its choices; give its index", escaped(text)));
  return static_cast<std::size_t>(found - choices.begin());
}

Line parse(const TextLines& lines, std::string_view text) {
  const json line = json::parse(text, nullptr, false);
  if (line.is_discarded()) lines.refuse("is no JSON");
  if (!line.is_object()) lines.refuse("is no JSON object");
  Line made;
  made.context = text_in(lines, field_in(lines, line, "context"), "a field 'context'");
  const json& choices = field_in(lines, line, "choices");
  if (!choices.is_array() || choices.size() < 2)
    lines.refuse("has a field 'choices' that is no list of two texts or more");
  for (const json& choice : choices) {
    made.choices.push_back(text_in(lines, choice, "a choice"));
    if (made.choices.back().empty()) lines.refuse("has a choice that is empty");
  }
  made.answer = answer_in(lines, field_in(lines, line, "answer"), made.choices);
  return made;
}

// Makes pieces of lines.
class Encoder {
 public:
  Encoder(const TextTokens& text, const QuestionText& how, std::int32_t store)
      : text_(text),
        how_(how),
        store_(store),
        prefix_(how.prefix ? text.prefix() : std::vector<std::int32_t>()) {}

  Question add(const TextLines& lines, const Line& line, std::vector<Piece>& pieces) {
    Question question{.choice_bytes = {}, .answer = line.answer, .first_piece = pieces.size()};
    const std::string_view context = std::string_view(line.context).substr(0, last_of(line.context));
    const std::string blanks = line.context.substr(context.size()) + how_.between;
    const std::vector<std::int32_t> alone = begin_of(lines, context);
    for (const std::string& choice : line.choices) {
      const std::vector<std::int32_t> whole = context.empty()
                                                  ? behind(alone, blanks + choice)
                                                  : behind(prefix_, line.context + how_.between + choice);
      add_piece(lines, alone, whole, question, pieces);
      question.choice_bytes.push_back(static_cast<std::int64_t>(choice.size()));
    }
    return question;
  }

  std::vector<std::int32_t> take() { return std::move(tokens_); }

 private:
  static std::size_t last_of(const std::string& context) {
    const std::size_t last = context.find_last_not_of(" \t\n\r\f\v");
    return last == std::string::npos ? 0 : last + 1;
  }

  std::vector<std::int32_t> behind(std::vector<std::int32_t> tokens, std::string_view text) const {
    const std::vector<std::int32_t> more = text_.encode(text);
    tokens.insert(tokens.end(), more.begin(), more.end());
    return tokens;
  }

  // The tokens of the context alone.
  std::vector<std::int32_t> begin_of(const TextLines& lines, std::string_view context) const {
    std::vector<std::int32_t> tokens = behind(prefix_, context);
    if (!tokens.empty()) return tokens;
    const std::optional<std::int32_t> end = text_.end_of_text();
    if (!end)
      lines.refuse("has an empty context, and the model no token that begins or ends a text; give a context");
    return {*end};
  }

  void add_piece(const TextLines& lines, const std::vector<std::int32_t>& alone,
                 const std::vector<std::int32_t>& whole, Question& question, std::vector<Piece>& pieces) {
    const auto numel = static_cast<std::int64_t>(whole.size());
    const std::int64_t of_choice = numel - static_cast<std::int64_t>(alone.size());
    if (of_choice < 1)
      lines.refuse("has a choice without a token of its own: the tokenizer joins it with the context");
    if (of_choice > how_.length)
      lines.refuse(
          fmt::format("has a choice of {} tokens; run.length allows at most {}", of_choice, how_.length));
    const std::int64_t left_out = std::max<std::int64_t>(0, numel - 1 - how_.length);
    question.cut |= left_out > 0;
    pieces.push_back({.store = store_,
                      .length = static_cast<std::int32_t>(numel - left_out - 1),
                      .uncounted = static_cast<std::int32_t>(numel - left_out - 1 - of_choice),
                      .begin = static_cast<std::int64_t>(tokens_.size())});
    tokens_.insert(tokens_.end(), whole.begin() + left_out, whole.end());
  }

  const TextTokens& text_;
  const QuestionText& how_;
  const std::int32_t store_;
  const std::vector<std::int32_t> prefix_;
  std::vector<std::int32_t> tokens_;
};

}  // namespace

Questions read_questions(const std::string& name, std::int32_t store, const TextTokens& text,
                         const QuestionText& how) {
  Questions made{.name = name, .questions = {}, .pieces = {}};
  TextLines lines(name, "evaluate");
  Encoder encoder(text, how, store);
  while (const std::optional<std::string_view> line = lines.next())
    made.questions.push_back(encoder.add(lines, parse(lines, *line), made.pieces));
  if (made.questions.empty()) throw UsageError(fmt::format("evaluate: '{}' has no questions", escaped(name)));
  made.store = TokenStore(encoder.take());
  return made;
}

Accuracy accuracy_of(const Questions& questions, std::span<const Score> scores) {
  std::int64_t plain = 0, normalised = 0;
  for (const Question& question : questions.questions) {
    std::size_t best = 0, best_normalised = 0;
    const auto loss = [&](std::size_t choice) { return scores[question.first_piece + choice].loss; };
    const auto per_byte = [&](std::size_t choice) {
      return loss(choice) / static_cast<double>(question.choice_bytes[choice]);
    };
    for (std::size_t choice = 1; choice < question.choice_bytes.size(); ++choice) {
      if (loss(choice) < loss(best)) best = choice;
      if (per_byte(choice) < per_byte(best_normalised)) best_normalised = choice;
    }
    plain += best == question.answer ? 1 : 0;
    normalised += best_normalised == question.answer ? 1 : 0;
  }
  const auto all = static_cast<double>(questions.questions.size());
  const auto error = [&](double share) { return all > 1 ? std::sqrt(share * (1 - share) / (all - 1)) : 0.0; };
  Accuracy made{.questions = static_cast<std::int64_t>(questions.questions.size()),
                .plain = static_cast<double>(plain) / all,
                .normalised = static_cast<double>(normalised) / all};
  made.plain_error = error(made.plain);
  made.normalised_error = error(made.normalised);
  return made;
}

}  // namespace tessera::cli
