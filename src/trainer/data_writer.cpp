#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <limits>
#include <memory>
#include <system_error>

#include "src/trainer/atomic_file.h"
#include "src/trainer/mapped_file.h"
#include "src/trainer/token_header.h"
#include "src/trainer/token_mask.h"
#include "tessera/data.h"
#include "tessera/error.h"

namespace tessera {

namespace {

// A mask in the making.
class MaskWriter {
 public:
  explicit MaskWriter(const std::string& path) : file_(path) { file_.append(make_mask_header(0, 0)); }

  void append(std::int64_t tokens, bool count) {
    for (std::int64_t k = 0; k < tokens; ++k, ++numel_) {
      if (numel_ % 8 == 0) bits_.push_back(std::byte{0});
      if (count) bits_.back() |= std::byte{1} << (numel_ % 8);
    }
    counted_ += count ? tokens : 0;
    constexpr std::size_t kBlock = std::size_t{1} << 16;
    if (bits_.size() > kBlock) flush(bits_.size() - 1);  // the last byte may not be full
  }

  void finish() {
    flush(bits_.size());
    file_.overwrite(0, make_mask_header(numel_, counted_));
    file_.commit();
  }

 private:
  void flush(std::size_t bytes) {
    file_.append(std::span(bits_).first(bytes));
    bits_.erase(bits_.begin(), bits_.begin() + static_cast<std::ptrdiff_t>(bytes));
  }

  AtomicFile file_;
  std::vector<std::byte> bits_;  // that are not written yet
  std::int64_t numel_ = 0, counted_ = 0;
};

// The mask of an earlier token file of this name would be taken for that of the new one.
void remove_mask(const std::string& path) {
  const std::string name = mask_name(path);
  std::error_code error;
  if (!std::filesystem::is_regular_file(name, error) || !is_token_mask(map_file(name).bytes)) return;
  if (!std::filesystem::remove(name, error) && error)
    throw EnvironmentError(
        fmt::format("cannot remove '{}', the mask of an earlier file '{}': {}", name, path, error.message()));
}

}  // namespace

struct TokenWriter::Impl {
  AtomicFile file;
  std::string path;
  TokenEncoding encoding;
  std::int64_t numel = 0;
  bool finished = false;
  std::unique_ptr<MaskWriter> mask = nullptr;
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

TokenWriter::TokenWriter(const std::string& path, TokenEncoding encoding, bool masked) {
  if (encoding == TokenEncoding::text)
    throw UsageError(fmt::format("token file '{}': write uint16 or uint32; text needs no token file", path));
  impl_.reset(new Impl{.file = AtomicFile(path), .path = path, .encoding = encoding});
  impl_->file.append(make_token_header(encoding, 0));
  if (masked) impl_->mask = std::make_unique<MaskWriter>(mask_name(path));
}

TokenWriter::~TokenWriter() = default;

void TokenWriter::append(std::span<const std::int32_t> tokens, bool count) {
  if (impl_->finished) throw UsageError(fmt::format("token file '{}': append after finish", impl_->path));
  constexpr auto kMost = std::int64_t{std::numeric_limits<std::int32_t>::max()};
  if (static_cast<std::int64_t>(tokens.size()) > kMost - impl_->numel)
    throw UsageError(
        fmt::format("token file '{}': a file holds at most {} tokens; write several", impl_->path, kMost));
  if (!count && !impl_->mask)
    throw UsageError(fmt::format(
        "token file '{}': tokens that do not count need a mask, which the writer was not made with",
        impl_->path));
  if (impl_->encoding == TokenEncoding::uint16)
    impl_->append<std::uint16_t>(tokens);
  else
    impl_->append<std::uint32_t>(tokens);
  if (impl_->mask) impl_->mask->append(static_cast<std::int64_t>(tokens.size()), count);
}

void TokenWriter::finish() {
  if (impl_->finished) throw UsageError(fmt::format("token file '{}': finish called twice", impl_->path));
  if (impl_->numel == 0)
    throw UsageError(fmt::format("token file '{}': there are no tokens to write", impl_->path));
  impl_->file.overwrite(0, make_token_header(impl_->encoding, impl_->numel));
  if (impl_->mask)
    impl_->mask->finish();
  else
    remove_mask(impl_->path);
  impl_->file.commit();
  impl_->finished = true;
}

}  // namespace tessera
