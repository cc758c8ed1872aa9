#include "src/cli/prepare/write_splits.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <tuple>

#include "src/cli/output.h"
#include "tessera/data.h"
#include "tessera/error.h"

namespace tessera::cli {
namespace {

namespace fs = std::filesystem;

// splitmix64's mixing function.
std::uint64_t mixed(std::uint64_t value) {
  value += 0x9e3779b97f4a7c15U;
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9U;
  value = (value ^ (value >> 27)) * 0x94d049bb133111ebU;
  return value ^ (value >> 31);
}

// A document by its place in the parts.
struct Entry {
  std::uint64_t key = 0;  // by which documents are ordered
  std::uint32_t part = 0, document = 0;
};

// One side of the split, in order.
std::vector<Entry> side(const PrepareOptions& options, std::span<const Part> parts, bool validation) {
  const auto limit = static_cast<std::uint64_t>(std::ldexp(options.validation, 63));
  const auto seed = static_cast<std::uint64_t>(options.seed);
  std::vector<Entry> entries;
  for (std::size_t part = 0; part < parts.size(); ++part)
    for (std::size_t document = 0; document < parts[part].documents.size(); ++document) {
      const std::uint64_t hash = parts[part].documents[document].hash;
      // By the text alone: neither the seed nor other documents move it to the other side.
      if ((mixed(hash) >> 1 < limit) != validation) continue;
      entries.push_back({.key = mixed(hash ^ mixed(seed)),
                         .part = static_cast<std::uint32_t>(part),
                         .document = static_cast<std::uint32_t>(document)});
    }
  std::ranges::sort(entries, {}, [](const Entry& of) { return std::tuple(of.key, of.part, of.document); });
  return entries;
}

// Where each document of a part begins.
std::vector<std::int64_t> begins_of(const Part& part) {
  std::vector<std::int64_t> begins = {0};
  for (const EncodedDocument& document : part.documents) begins.push_back(begins.back() + document.tokens);
  return begins;
}

// Token files of one side. A document that does not fit into what is left of a file begins the next.
class Shards {
 public:
  Shards(const PrepareOptions& options, const char* name, TokenEncoding encoding)
      : folder_(options.out),
        name_(name),
        encoding_(encoding),
        most_(options.shard_tokens),
        masked_(options.fields.prompted()) {}

  // The first `prompt` tokens of a document do not count.
  void add(std::span<const std::int32_t> document, std::int64_t prompt, std::int32_t end_of_text) {
    const auto numel = static_cast<std::int64_t>(document.size()) + 1;
    if (writer_ && numel_ + numel > most_) finish();
    if (!writer_) begin();
    begins_.push_back(numel_);
    const auto uncounted = static_cast<std::size_t>(prompt);
    if (masked_) writer_->append(document.first(uncounted), false);
    writer_->append(document.subspan(uncounted));
    writer_->append({&end_of_text, 1});
    numel_ += numel;
    made_.tokens += numel;
    made_.counted += numel - prompt;
    ++made_.documents;
  }

  PreparedSplit done() {
    if (writer_) finish();
    return std::move(made_);
  }

 private:
  void begin() {
    made_.files.push_back(fmt::format("{}_{:05}.bin", name_, made_.files.size()));
    writer_ = std::make_unique<TokenWriter>((folder_ / made_.files.back()).string(), encoding_, masked_);
  }

  void finish() {
    writer_->finish();
    writer_.reset();
    fs::path index = folder_ / made_.files.back();
    index.replace_extension(".documents");
    OutputFile file("data prepare --out", index);
    begins_.push_back(numel_);
    file.stream().write(reinterpret_cast<const char*>(begins_.data()),
                        static_cast<std::streamsize>(begins_.size() * sizeof begins_[0]));
    file.commit();
    begins_.clear();
    numel_ = 0;
  }

  fs::path folder_;
  const char* name_;
  TokenEncoding encoding_;
  std::int64_t most_;
  bool masked_;
  std::unique_ptr<TokenWriter> writer_;
  std::vector<std::int64_t> begins_;  // of the documents of the file, and its end
  std::int64_t numel_ = 0;            // of the file
  PreparedSplit made_;
};

}  // namespace

Prepared write_splits(const PrepareOptions& options, std::span<const Part> parts,
                      const fs::path& parts_folder, std::int64_t vocabulary, std::int32_t end_of_text) {
  const TokenEncoding encoding = vocabulary <= std::int64_t{std::numeric_limits<std::uint16_t>::max()} + 1
                                     ? TokenEncoding::uint16
                                     : TokenEncoding::uint32;
  std::vector<PartTokens> tokens;
  std::vector<std::vector<std::int64_t>> begins;
  Prepared made{.train = {}, .validation = {}, .vocabulary = vocabulary};
  for (const Part& part : parts) {
    tokens.emplace_back(parts_folder, part);
    begins.push_back(begins_of(part));
    made.text_bytes += part.text_bytes;
  }
  const auto write = [&](const char* name, bool validation) {
    Shards shards(options, name, encoding);
    for (const Entry& entry : side(options, parts, validation)) {
      const std::vector<std::int64_t>& of = begins[entry.part];
      const std::int64_t begin = of[entry.document], end = of[entry.document + 1];
      shards.add(tokens[entry.part].tokens().subspan(static_cast<std::size_t>(begin),
                                                     static_cast<std::size_t>(end - begin)),
                 parts[entry.part].documents[entry.document].prompt, end_of_text);
    }
    return shards.done();
  };
  made.train = write("train", false);
  made.validation = write("validation", true);
  return made;
}

}  // namespace tessera::cli
