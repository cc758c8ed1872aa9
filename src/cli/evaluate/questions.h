// Multiple-choice questions, from JSON lines: each line {"context": "…", "choices": ["…", …], "answer": 0}.
// Which choice a model takes is the one that it finds most likely behind the context.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "src/cli/evaluate/score.h"
#include "src/cli/text_tokens.h"

namespace tessera::cli {

struct Question {
  std::vector<std::int64_t> choice_bytes;  // of the text of each choice
  std::size_t answer = 0;                  // the index of the right one
  std::size_t first_piece = 0;             // in Questions::pieces; one a choice
  bool cut = false;                        // whether tokens of its context were left out
};

// All questions of one file.
struct Questions {
  std::string name;
  std::vector<Question> questions;
  TokenStore store = TokenStore(std::vector<std::int32_t>());
  std::vector<Piece> pieces;  // of this store, as `store` of read_questions() numbers it
};

struct QuestionText {
  std::string between = " ";  // between context and choice
  bool prefix = true;         // the tokenizer's tokens in front of each context
  std::int64_t length = 0;    // the longest sequence that the model is given
};

// Reads a file. Context and choice are encoded as EleutherAI's lm-evaluation-harness does it: blanks at the
// context's end go to the choice, all is encoded as one text, and the choice's tokens are those behind as
// many as the context alone has. An empty context is the token that begins or ends texts. Of a context that
// is too long the last tokens stay. Throws UsageError naming file and line for what is no JSON or no such
// question, and for a choice that is too long; EnvironmentError if the file cannot be read.
Questions read_questions(const std::string& name, std::int32_t store, const TextTokens& text,
                         const QuestionText& how);

struct Accuracy {
  std::int64_t questions = 0;
  double plain = 0.0;       // the share of questions whose answer has the largest likelihood
  double normalised = 0.0;  // the same, of the largest log-likelihood per byte of the choice
  // Standard errors of both, of these questions as a sample.
  double plain_error = 0.0, normalised_error = 0.0;
};

// `scores` are those of all pieces, in their order. Of equal likelihoods the first choice is taken.
Accuracy accuracy_of(const Questions& questions, std::span<const Score> scores);

}  // namespace tessera::cli
