// In a build without zlib, Zstandard or simdjson.
#include "src/cli/prepare/prepare.h"
#include "tessera/error.h"

namespace tessera::cli {

Prepared prepare(const PrepareOptions&, const PrepareProgress&,
                 const std::function<void(const std::string&)>&) {
  throw UnsupportedError(
      "data prepare: this build is without zlib, zstd or simdjson; install zlib1g-dev, libzstd-dev and "
      "libsimdjson-dev, and build anew");
}

}  // namespace tessera::cli
