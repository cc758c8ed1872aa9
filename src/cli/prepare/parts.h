// What a preparation has encoded so far: parts, each some documents of one input, in a folder beside the
// result. A part appears whole or not at all, so an interrupted preparation goes on behind the last one.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace tessera::cli {

struct EncodedDocument {
  std::uint64_t hash = 0;   // of its text
  std::int64_t tokens = 0;  // without a token at its end
  std::int64_t prompt = 0;  // how many of them are of the prompt, and do not count
};

struct Part {
  std::int64_t input = 0;   // place among the inputs
  std::int64_t number = 0;  // of the part, within the input
  bool last = false;        // of the input
  std::int64_t text_bytes = 0;
  std::vector<EncodedDocument> documents = {};
};

// The file of a part.
std::filesystem::path part_path(const std::filesystem::path& folder, std::int64_t input, std::int64_t number);

// Writes the part with the tokens of its documents, one behind the other. Throws EnvironmentError if the disk
// refuses.
void write_part(const std::filesystem::path& folder, const Part& part, std::span<const std::int32_t> tokens);
// What a part says of itself, without the tokens. Nothing if there is no such part.
std::optional<Part> read_part(const std::filesystem::path& folder, std::int64_t input, std::int64_t number);

// The tokens of a part, mapped; documents are ranges of them. Throws EnvironmentError if the file is shorter
// than it says.
class PartTokens {
 public:
  PartTokens(const std::filesystem::path& folder, const Part& part);
  ~PartTokens();
  PartTokens(PartTokens&& other) noexcept;
  PartTokens& operator=(PartTokens&&) = delete;
  std::span<const std::int32_t> tokens() const { return tokens_; }

 private:
  void* mapping_ = nullptr;
  std::size_t bytes_ = 0;
  std::span<const std::int32_t> tokens_;
};

}  // namespace tessera::cli
