#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <limits>

#include "src/trainer/atomic_file.h"
#include "src/trainer/token_header.h"
#include "tessera/data.h"
#include "tessera/error.h"

namespace tessera {

struct TokenWriter::Impl {
  AtomicFile file;
  std::string path;
  TokenEncoding encoding;
  std::int64_t numel = 0;
  bool finished = false;
  std::vector<std::byte> narrow = {};  // one block of tokens as the file holds them

  template <typename Token>
  void check(std::span<const std::int32_t> tokens) const {
    for (std::size_t i = 0; i < tokens.size(); ++i)
      if (tokens[i] < 0 || std::int64_t{tokens[i]} > std::int64_t{std::numeric_limits<Token>::max()})
        throw UsageError(fmt::format("token file '{}': token {} at place {} is not within 0 to {}", path,
                                     tokens[i], numel + static_cast<std::int64_t>(i),
                                     std::numeric_limits<Token>::max()));
  }

  // All of them, or none where one is refused.
  template <typename Token>
  void append(std::span<const std::int32_t> tokens) {
    check<Token>(tokens);
    constexpr std::size_t kBlock = std::size_t{1} << 16;
    while (!tokens.empty()) {
      const auto block = tokens.first(std::min(tokens.size(), kBlock));
      append_block<Token>(block);
      tokens = tokens.subspan(block.size());
    }
  }

  template <typename Token>
  void append_block(std::span<const std::int32_t> tokens) {
    narrow.resize(tokens.size() * sizeof(Token));
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      const auto token = static_cast<Token>(tokens[i]);
      std::memcpy(narrow.data() + i * sizeof token, &token, sizeof token);
    }
    file.append(narrow);
    numel += static_cast<std::int64_t>(tokens.size());
  }
};

TokenWriter::TokenWriter(const std::string& path, TokenEncoding encoding) {
  if (encoding == TokenEncoding::text)
    throw UsageError(fmt::format("token file '{}': write uint16 or uint32; text needs no token file", path));
  impl_.reset(new Impl{.file = AtomicFile(path), .path = path, .encoding = encoding});
  impl_->file.append(make_token_header(encoding, 0));
}

TokenWriter::~TokenWriter() = default;

void TokenWriter::append(std::span<const std::int32_t> tokens) {
  if (impl_->finished) throw UsageError(fmt::format("token file '{}': append after finish", impl_->path));
  constexpr auto kMost = std::int64_t{std::numeric_limits<std::int32_t>::max()};
  if (static_cast<std::int64_t>(tokens.size()) > kMost - impl_->numel)
    throw UsageError(
        fmt::format("token file '{}': a file holds at most {} tokens; write several", impl_->path, kMost));
  if (impl_->encoding == TokenEncoding::uint16)
    impl_->append<std::uint16_t>(tokens);
  else
    impl_->append<std::uint32_t>(tokens);
}

void TokenWriter::finish() {
  if (impl_->finished) throw UsageError(fmt::format("token file '{}': finish called twice", impl_->path));
  if (impl_->numel == 0)
    throw UsageError(fmt::format("token file '{}': there are no tokens to write", impl_->path));
  impl_->file.overwrite(0, make_token_header(impl_->encoding, impl_->numel));
  impl_->file.commit();
  impl_->finished = true;
}

}  // namespace tessera
