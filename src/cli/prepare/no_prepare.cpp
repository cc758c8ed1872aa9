// In a build without zlib, Zstandard or simdjson.
#include <fmt/format.h>

#include "src/cli/prepare/documents.h"
#include "src/cli/prepare/prepare.h"
#include "src/cli/prepare/text_lines.h"
#include "tessera/error.h"

namespace tessera::cli {

namespace {

[[noreturn]] void refuse(const char* command) {
  throw UnsupportedError(
      fmt::format("{}: this build is without zlib, zstd or simdjson; install zlib1g-dev, libzstd-dev and "
                  "libsimdjson-dev, and build anew",
                  command));
}

}  // namespace

Prepared prepare(const PrepareOptions&, const PrepareProgress&,
                 const std::function<void(const std::string&)>&) {
  refuse("data prepare");
}

struct Documents::Impl {};
Documents::Documents(const std::string&, DocumentFields, const char* command) { refuse(command); }
Documents::~Documents() = default;
std::optional<Document> Documents::next() { return std::nullopt; }
std::int64_t Documents::consumed() const { return 0; }

TextLines::TextLines(const std::string&, const char* command) : command_(command) { refuse(command); }
std::optional<std::string_view> TextLines::next() { return std::nullopt; }
std::string TextLines::rest() { return {}; }
void TextLines::refuse(std::string_view) const { cli::refuse(command_); }

}  // namespace tessera::cli
