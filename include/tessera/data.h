// Tokens on disk and how a run reads them: token files and plain text, the validation split, and the order of
// samples. Knows nothing of ranks: a sample is identified by its number in the whole run.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/mesh.h"

namespace tessera {

struct MappedFile;

// How a file holds its tokens.
//   text     every byte is a token of 0 to 255; no header
//   uint16   256 int32 of header (magic 20240520, version 1, count, then zeros), then `count` uint16
//   uint32   the same with magic 20240801, version 7 and uint32
// All little-endian. Beside a token file may lie a mask, which says which of its tokens count as targets:
// train.mask beside train.bin. It has 32 bytes of header ("TSRMASK1", then as 8-byte integers the number of
// tokens, that of those that count, and 0), then a bit for each token, from the lowest of a byte on.
enum class TokenEncoding : std::uint8_t { text, uint16, uint32 };

std::string_view name_of(TokenEncoding encoding);
constexpr std::int64_t bytes_of(TokenEncoding encoding) {
  return encoding == TokenEncoding::text ? 1 : encoding == TokenEncoding::uint16 ? 2 : 4;
}

// The target of a position that does not count in the loss.
inline constexpr std::int32_t kNotCounted = -1;

// Tokens [begin, end) of a source.
struct TokenRange {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  std::int64_t numel() const { return end - begin; }
  bool operator==(const TokenRange&) const = default;
};

// A sequence of tokens from mapped files, one after the other, or from memory. Copies share the data. Any
// thread may read. Do not change a file while it is mapped.
class TokenSource {
 public:
  // Maps the file `path`. If there is no such file, maps the files that the glob pattern `path` matches (*, ?
  // and [...]), in the order of their names' bytes; masks beside token files, too. A file that starts with
  // one of the two magic numbers is a token file, and a file whose name ends in ".bin" must be one. Every
  // other file is text, but what begins as other formats do (Parquet, Arrow, NumPy, safetensors, JSON lines,
  // archives) is refused. `vocabulary` is the model's, from 1 to 2^31. Throws EnvironmentError for a pattern
  // that matches nothing, for a file that is empty or cannot be read, for a header that contradicts its file
  // (a version other than the above, a count that does not match the bytes), for files of different
  // encodings, for a mask that is damaged or of another number of tokens, and for files of which some have a
  // mask and some have none. Throws UsageError for text with a vocabulary below 256. Tokens are checked when
  // they are read; check_tokens() checks all of them.
  static TokenSource open(const std::string& path, std::int64_t vocabulary);
  // Text in memory, for tests and embedders. Messages show `name` in place of a path.
  static TokenSource of_text(std::string text, std::int64_t vocabulary = 256,
                             const std::string& name = "text");

  std::int64_t numel() const { return files_->back().range.end; }  // of all files
  std::int64_t vocabulary() const { return vocabulary_; }
  TokenEncoding encoding() const { return encoding_; }
  const std::string& name() const { return name_; }  // the path or pattern
  // The range of tokens that each file holds, in order. At least one range; each ends where the next begins.
  std::vector<TokenRange> files() const;
  // The name of the file with index `place` in files(). UsageError for an index that does not exist.
  const std::string& file_name(std::size_t place) const;

  // Reads tokens [begin, begin + tokens.size()), across files where needed. Throws UsageError for a range
  // outside [0, numel()). Throws EnvironmentError for a token that is not below the vocabulary, naming the
  // file, the place in it and the token, and also if a file has become shorter or its disk fails.
  void read(std::int64_t begin, std::span<std::int32_t> tokens) const;
  // The same as targets: kNotCounted in place of a token that does not count.
  void read_targets(std::int64_t begin, std::span<std::int32_t> targets) const;
  bool masked() const { return masked_; }
  std::int64_t counted() const { return counted_; }  // tokens that count; all where there is no mask
  // Asks the system to read the tokens of `range` from disk ahead of their use; does not wait. Without it,
  // read() takes from disk the pages that it touches, one by one, and no neighbouring pages: if samples are
  // drawn from more data than memory holds, those would only displace other pages that are needed. Throws
  // UsageError for a range outside [0, numel()).
  void prefetch(TokenRange range) const;
  // Reads all tokens once, at the speed of the disk. Throws as read() does.
  void check_tokens() const;

 private:
  struct File {
    std::string name;
    // One of these two has the data.
    std::shared_ptr<const std::string> text;
    std::shared_ptr<const MappedFile> mapped;
    const std::byte* data = nullptr;  // range.numel() tokens of encoding_
    TokenRange range;
    std::shared_ptr<const MappedFile> mask = nullptr;
  };
  TokenSource() = default;
  void check_range(TokenRange range) const;
  // Calls use(file, range in the file) for each file that holds a part of the range.
  template <typename Use>
  void for_files(TokenRange range, const Use& use) const;
  void read_file(const File& file, std::int64_t begin, std::span<std::int32_t> tokens) const;
  void open_masks(std::vector<File>& files);
  [[noreturn]] void refuse_token(const File& file, std::int64_t begin, std::int64_t count) const;

  std::shared_ptr<const std::vector<File>> files_;  // at least one
  std::int64_t vocabulary_ = 0;
  TokenEncoding encoding_ = TokenEncoding::text;
  std::string name_;
  bool masked_ = false;
  std::int64_t counted_ = 0;
};

// A text by which to compare data sets: "1212 tokens in 3 files (hash 0123456789abcdef)". The hash covers
// each file's count and its first and last tokens, but not names and types of files. With masks it goes on:
// ", of which 300 count (hash …)", where the hash covers what of these tokens counts. Throws as
// TokenSource::read() does.
std::string identity_of(const TokenSource& source);

// Writes a token file under a temporary name and renames it at the end, so that a reader sees the whole file
// or none. Without finish() the temporary file is removed.
class TokenWriter {
 public:
  // `masked`: writes a mask beside it, too. Throws EnvironmentError if a file cannot be created, UsageError
  // for TokenEncoding::text.
  TokenWriter(const std::string& path, TokenEncoding encoding, bool masked = false);
  ~TokenWriter();
  TokenWriter(const TokenWriter&) = delete;
  TokenWriter& operator=(const TokenWriter&) = delete;

  // Throws UsageError for a token that the encoding cannot hold, or a file of more than 2^31 − 1 tokens; none
  // of `tokens` is then written. Throws EnvironmentError if the disk refuses; some may then be written.
  // `count`: whether the tokens count as targets. UsageError for some that do not, without a mask.
  void append(std::span<const std::int32_t> tokens, bool count = true);
  // Writes the headers, syncs and renames, the mask first. Without a mask it removes one that was beside an
  // earlier file of this name. Nothing may be appended after it.
  void finish();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

struct TokenSplit {
  TokenRange train;
  TokenRange validation;  // after train; may be empty
};

// Keep the last tokens for validation: a fraction in [0, 1), rounded down to whole tokens, or a count. Throw
// UsageError naming the value if it is out of range or leaves nothing to train on.
TokenSplit split_by_fraction(std::int64_t numel, double validation_fraction);
TokenSplit split_by_count(std::int64_t numel, std::int64_t validation_numel);

// shuffled: every epoch visits every window once, in an order that depends on seed and epoch only; epochs
// follow each other without end. in_order: the windows from first to last, then empty samples (inputs 0,
// targets kNotCounted), so that an evaluation of any shape counts every window once.
enum class SampleOrder : std::uint8_t { shuffled, in_order };

struct SamplerOptions {
  std::int64_t length = 0;  // tokens in a sample, T
  SampleOrder order = SampleOrder::shuffled;
  std::uint64_t seed = 0;
};

// Files from which a sampler reads nothing: their part of its range is shorter than the T + 1 tokens of one
// sample.
struct UnreadFiles {
  std::vector<std::string> names;  // in order
  std::int64_t numel = 0;          // tokens of the range in them
  std::int64_t of = 0;             // number of files that hold any of the range, these included
};

// Cuts a range, file by file, into windows of T + 1 tokens that overlap by one. So every token of a file but
// its first is a target in exactly one window. A tail shorter than T is left out, and so is a file of at most
// T tokens (unread()). No window crosses from one file into the next, as in llm.c. Sample number g of the run
// is a pure function of the files, the options and g. Nothing is stored: a resumed run needs only the number
// to continue from.
class Sampler {
 public:
  // Throws UsageError for a range outside the source, a length below 1, or a range in which every file is too
  // short for a whole window.
  Sampler(TokenSource source, TokenRange range, const SamplerOptions& options);

  std::int64_t windows() const { return windows_; }  // samples in an epoch
  std::int64_t length() const { return options_.length; }
  const UnreadFiles& unread() const { return unread_; }
  // The index of the window that sample `number` (0 or more) reads; −1 after the last window in order.
  std::int64_t window_of(std::int64_t number) const;

  // Reads samples first, first + 1, ... as rows of inputs and of targets, each [rows, T]. The targets are the
  // inputs one token later, kNotCounted where a mask says so. Returns how many targets count. Throws
  // UsageError unless both spans have equal sizes of whole rows, and throws as TokenSource::read() does.
  std::int64_t read(std::int64_t first, std::span<std::int32_t> inputs,
                    std::span<std::int32_t> targets) const;
  // Asks the system to read samples [first, first + count) from disk ahead of their use; does not wait.
  void prefetch(std::int64_t first, std::int64_t count) const;

 private:
  // The windows of one file. The next Part continues with those of the next file.
  struct Part {
    std::int64_t first_window = 0;
    std::int64_t begin = 0;  // token of the source
  };
  std::int64_t begin_of(std::int64_t window) const;
  void cut(TokenRange range);

  TokenSource source_;
  SamplerOptions options_;
  std::vector<Part> parts_;  // each has at least one window
  std::int64_t windows_ = 0;
  UnreadFiles unread_;
};

// Which samples a step reads: each microbatch the next `sequences` rows, by the microbatch's number in the
// step. So a step has the same samples for every grid with as many microbatches of as many sequences.
struct SampleGrid {
  Mesh mesh = {};
  Rounds rounds = {};
  std::int64_t sequences = 1;

  std::int64_t samples_per_step() const { return rounds.microbatches(mesh) * sequences; }
  // How many microbatches the data rank has in a step: one for each round, but the last if it rests there.
  int microbatches_of(int data_rank) const { return rounds.microbatches(mesh, data_rank); }
  // The number, in the run, of the first sample of a data rank's microbatch in step `step`, counted from 0.
  std::int64_t first_sample(std::int64_t step, int data_rank, std::int64_t microbatch) const {
    return step * samples_per_step() + rounds.number(mesh, data_rank, microbatch) * sequences;
  }
};

}  // namespace tessera
