#include "src/cli/prepare/parts.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <numeric>
#include <utility>

#include "src/cli/output.h"
#include "tessera/error.h"

namespace tessera::cli {
namespace {

namespace fs = std::filesystem;

// Followed by the documents and then the tokens, all little-endian.
struct Header {
  char magic[8] = {'t', 's', 'r', 'p', 'a', 'r', 't', '2'};
  std::int64_t input = 0, number = 0, last = 0, text_bytes = 0, documents = 0, tokens = 0;
};

std::int64_t tokens_of(const Part& part) {
  return std::accumulate(part.documents.begin(), part.documents.end(), std::int64_t{0},
                         [](std::int64_t sum, const EncodedDocument& of) { return sum + of.tokens; });
}

[[noreturn]] void refuse_damaged(const fs::path& path) {
  throw EnvironmentError(
      fmt::format("data prepare: '{}' is damaged; remove the folder that it is in", escaped(path.string())));
}

std::size_t begin_of_tokens(const Part& part) {
  return sizeof(Header) + part.documents.size() * sizeof(EncodedDocument);
}

}  // namespace

fs::path part_path(const fs::path& folder, std::int64_t input, std::int64_t number) {
  return folder / fmt::format("{:06}-{:06}", input, number);
}

void write_part(const fs::path& folder, const Part& part, std::span<const std::int32_t> tokens) {
  OutputFile file("data prepare --out", part_path(folder, part.input, part.number));
  Header header;
  header.input = part.input;
  header.number = part.number;
  header.last = part.last ? 1 : 0;
  header.text_bytes = part.text_bytes;
  header.documents = static_cast<std::int64_t>(part.documents.size());
  header.tokens = static_cast<std::int64_t>(tokens.size());
  const auto write = [&](const void* from, std::size_t bytes) {
    file.stream().write(static_cast<const char*>(from), static_cast<std::streamsize>(bytes));
  };
  write(&header, sizeof header);
  write(part.documents.data(), part.documents.size() * sizeof(EncodedDocument));
  write(tokens.data(), tokens.size_bytes());
  file.commit();
}

std::optional<Part> read_part(const fs::path& folder, std::int64_t input, std::int64_t number) {
  std::ifstream in(part_path(folder, input, number), std::ios::binary);
  if (!in) return std::nullopt;
  Header header;
  const Header expected;
  if (!in.read(reinterpret_cast<char*>(&header), sizeof header) ||
      std::memcmp(header.magic, expected.magic, sizeof header.magic) != 0 || header.input != input ||
      header.number != number || header.documents < 0)
    refuse_damaged(part_path(folder, input, number));
  Part part{.input = input,
            .number = number,
            .last = header.last != 0,
            .text_bytes = header.text_bytes,
            .documents = std::vector<EncodedDocument>(static_cast<std::size_t>(header.documents))};
  in.read(reinterpret_cast<char*>(part.documents.data()),
          static_cast<std::streamsize>(part.documents.size() * sizeof(EncodedDocument)));
  if (!in || tokens_of(part) != header.tokens) refuse_damaged(part_path(folder, input, number));
  return part;
}

PartTokens::PartTokens(const fs::path& folder, const Part& part) {
  const fs::path path = part_path(folder, part.input, part.number);
  const auto numel = static_cast<std::size_t>(tokens_of(part));
  bytes_ = begin_of_tokens(part) + numel * sizeof(std::int32_t);
  std::error_code error;
  if (fs::file_size(path, error) != bytes_ || error) refuse_damaged(path);
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  mapping_ = file < 0 ? MAP_FAILED : mmap(nullptr, bytes_, PROT_READ, MAP_PRIVATE, file, 0);
  const int code = errno;
  if (file >= 0) ::close(file);
  if (mapping_ == MAP_FAILED) {
    mapping_ = nullptr;
    throw EnvironmentError(
        fmt::format("data prepare: cannot read '{}': {}", escaped(path.string()), std::strerror(code)));
  }
  const auto* const begin = static_cast<const std::byte*>(mapping_) + begin_of_tokens(part);
  tokens_ = {reinterpret_cast<const std::int32_t*>(begin), numel};
}

PartTokens::~PartTokens() {
  if (mapping_ != nullptr) munmap(mapping_, bytes_);
}

PartTokens::PartTokens(PartTokens&& other) noexcept
    : mapping_(std::exchange(other.mapping_, nullptr)),
      bytes_(other.bytes_),
      tokens_(std::exchange(other.tokens_, {})) {}

}  // namespace tessera::cli
