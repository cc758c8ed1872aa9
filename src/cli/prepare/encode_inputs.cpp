#include "src/cli/prepare/encode_inputs.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <atomic>
#include <exception>
#include <mutex>
#include <thread>

#include "src/cli/prepare/documents.h"
#include "src/cli/text_tokens.h"

namespace tessera::cli {
namespace {

namespace fs = std::filesystem;

// Text that is read before it is encoded by all threads together.
constexpr std::int64_t kBatchBytes = std::int64_t{4} << 20;

struct Encoded {
  std::uint64_t hash = 0;
  std::int64_t prompt = 0;  // tokens of it
  std::vector<std::int32_t> tokens;
};

std::uint64_t hash_of(const Document& document, bool prompted) {
  const std::uint64_t seed = prompted ? XXH3_64bits(document.prompt.data(), document.prompt.size()) : 0;
  return XXH3_64bits_withSeed(document.text.data(), document.text.size(), seed);
}

// What a document spells is text: only the preparation itself puts special tokens.
void encode(const Document& document, const TextTokens& text, const std::vector<std::int32_t>& prefix,
            bool prompted, Encoded& encoded) {
  encoded.hash = hash_of(document, prompted);
  const auto add = [&](const std::vector<std::int32_t>& tokens) {
    encoded.tokens.insert(encoded.tokens.end(), tokens.begin(), tokens.end());
  };
  if (prompted) {
    add(prefix);
    add(text.encode(document.prompt));
    encoded.prompt = static_cast<std::int64_t>(encoded.tokens.size());
  }
  add(text.encode(document.text));
}

// Each thread takes the next document that none has; the first error ends all.
std::vector<Encoded> encode(const std::vector<Document>& documents, const TextTokens& text, bool prompted,
                            int threads) {
  const std::vector<std::int32_t> prefix = prompted ? text.prefix() : std::vector<std::int32_t>();
  std::vector<Encoded> encoded(documents.size());
  std::atomic<std::size_t> next{0};
  std::exception_ptr error;
  std::mutex mutex;
  const auto work = [&] {
    try {
      for (std::size_t k = next++; k < documents.size(); k = next++)
        encode(documents[k], text, prefix, prompted, encoded[k]);
    } catch (...) {
      const std::lock_guard lock(mutex);
      if (!error) error = std::current_exception();
      next = documents.size();
    }
  };
  std::vector<std::jthread> others;
  for (int thread = 1; thread < threads; ++thread) others.emplace_back(work);
  work();
  others.clear();
  if (error) std::rethrow_exception(error);
  return encoded;
}

// One input's parts.
class InputEncoder {
 public:
  InputEncoder(const PrepareOptions& options, const Tokenizer& tokenizer, const fs::path& folder,
               std::int64_t input)
      : options_(options), text_(tokenizer), folder_(folder), input_(input) {}

  // Takes the parts that are there. True if they are all of the input.
  bool take_parts(std::vector<Part>& parts) {
    while (std::optional<Part> part = read_part(folder_, input_, part_.number)) {
      passed_ += static_cast<std::int64_t>(part->documents.size());
      part_.number++;
      const bool last = part->last;
      parts.push_back(*std::move(part));
      if (last) return true;
    }
    return false;
  }

  void encode_rest(std::vector<Part>& parts, const std::function<void(std::int64_t)>& progress) {
    Documents documents(options_.inputs[static_cast<std::size_t>(input_)], options_.fields);
    for (std::int64_t k = 0; k < passed_ && documents.next(); ++k) {
    }
    part_.input = input_;
    std::optional<Document> document = documents.next();
    while (document) {
      read_batch(documents, document);
      add_batch();
      progress(documents.consumed());
      if (part_.text_bytes >= options_.part_bytes && document) end_part(parts, false);
    }
    end_part(parts, true);
  }

 private:
  // From `document` on, until enough is there or the part is full. Leaves the document behind in `document`.
  void read_batch(Documents& documents, std::optional<Document>& document) {
    std::int64_t bytes = 0;
    batch_.clear();
    while (document && bytes < kBatchBytes && part_.text_bytes < options_.part_bytes) {
      bytes += document->bytes();
      part_.text_bytes += document->bytes();
      batch_.push_back(*std::move(document));
      document = documents.next();
    }
  }

  void add_batch() {
    for (const Encoded& one : encode(batch_, text_, options_.fields.prompted(), options_.threads)) {
      part_.documents.push_back(
          {.hash = one.hash, .tokens = static_cast<std::int64_t>(one.tokens.size()), .prompt = one.prompt});
      tokens_.insert(tokens_.end(), one.tokens.begin(), one.tokens.end());
    }
  }

  void end_part(std::vector<Part>& parts, bool last) {
    part_.last = last;
    write_part(folder_, part_, tokens_);
    const std::int64_t next = part_.number + 1;
    parts.push_back(std::move(part_));
    part_ = {.input = input_, .number = next};
    tokens_.clear();
  }

  const PrepareOptions& options_;
  const TextTokens text_;
  const fs::path& folder_;
  const std::int64_t input_;
  std::int64_t passed_ = 0;  // documents in parts that are there
  std::vector<Document> batch_;
  Part part_;  // that is being made
  std::vector<std::int32_t> tokens_;
};

}  // namespace

std::vector<Part> encode_inputs(const PrepareOptions& options, const Tokenizer& tokenizer,
                                const fs::path& folder, const PrepareProgress& progress,
                                const std::function<void(const std::string&)>& note) {
  std::vector<std::int64_t> sizes;
  std::int64_t all = 0, done = 0;
  for (const std::string& input : options.inputs) {
    std::error_code none;
    sizes.push_back(static_cast<std::int64_t>(fs::file_size(input, none)));
    all += sizes.back();
  }
  std::vector<Part> parts;
  for (std::size_t input = 0; input < options.inputs.size(); ++input) {
    InputEncoder encoder(options, tokenizer, folder, static_cast<std::int64_t>(input));
    const std::size_t before = parts.size();
    const bool whole = encoder.take_parts(parts);
    if (parts.size() > before && !whole)
      note(fmt::format("goes on with {} behind {} parts that are encoded", options.inputs[input],
                       parts.size() - before));
    if (!whole) encoder.encode_rest(parts, [&](std::int64_t consumed) { progress(done + consumed, all); });
    progress(done += sizes[input], all);
  }
  return parts;
}

}  // namespace tessera::cli
