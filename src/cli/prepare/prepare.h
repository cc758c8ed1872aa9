// Text into token files that a run reads: documents are encoded in parallel, put into an order that only
// their texts and a seed decide, and split into what is trained on and what validates.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "src/cli/prepare/documents.h"

namespace tessera::cli {

struct PrepareOptions {
  std::vector<std::string> inputs;  // files of text or JSON lines (Documents), as they are or compressed
  std::string tokenizer;            // a tokenizer.json, or a folder that has one
  std::string out;                  // the folder of the result
  DocumentFields fields;            // of JSON lines; of a prompt and an answer the answer alone counts
  std::string end_of_text;          // the token behind each document, as the tokenizer spells it; empty: the
                                    // first that it has of <|endoftext|>, <|end_of_text|>, </s>
  double validation = 0.01;         // share of the documents, 0 up to 0.9
  std::int64_t seed = 1;            // of the order
  std::int64_t shard_tokens = 100'000'000;  // of one token file
  int threads = 1;
  // Text after which what was encoded is kept, so that an interruption costs no more than that. Changes
  // nothing of the result.
  std::int64_t part_bytes = std::int64_t{32} << 20;
};

struct PreparedSplit {
  std::vector<std::string> files;  // names in the folder
  std::int64_t documents = 0;
  std::int64_t tokens = 0;   // ends of documents included
  std::int64_t counted = 0;  // those that count as targets
};

struct Prepared {
  PreparedSplit train, validation;
  std::int64_t text_bytes = 0;
  std::int64_t vocabulary = 0;
};

// How far the encoding is: bytes of all inputs, as they lie on the disk.
using PrepareProgress = std::function<void(std::int64_t done, std::int64_t all)>;

// Writes train_00000.bin, validation_00000.bin and so on, each with the first tokens of its documents in a
// .documents file beside it, tokenizer.json, and data.json, which says what is there and comes last. The
// bytes are the same for any number of threads, and after any number of interruptions: what was encoded is
// kept in the folder until the end, and a call with the same inputs and tokenizer goes on with it; `note` is
// told so. Equal documents come to the same side of the split.
//
// A prompt and its answer are encoded apart, so that the prompt has the tokens that it has alone, and joined
// as they are; in front stand the tokens that the tokenizer puts in front of a text. Each token file then has
// a mask (tessera/data.h), by which the tokens of the answer and the end of the text count.
//
// Throws UsageError for options that mean nothing, for a folder that has a result already or an unfinished
// one of other inputs, and as Documents and Tokenizer do; EnvironmentError if a file cannot be read or
// written.
Prepared prepare(const PrepareOptions& options, const PrepareProgress& progress,
                 const std::function<void(const std::string&)>& note);

}  // namespace tessera::cli
