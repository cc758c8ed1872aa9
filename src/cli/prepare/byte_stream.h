// The bytes of a file, decompressed while they are read if they are gzip or Zstandard.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

namespace tessera::cli {

class ByteStream {
 public:
  virtual ~ByteStream() = default;
  ByteStream() = default;
  ByteStream(const ByteStream&) = delete;
  ByteStream& operator=(const ByteStream&) = delete;

  // Fills `to` from its beginning; fewer bytes than that only at the end. Throws EnvironmentError naming the
  // file if it cannot be read, is damaged, or ends in the middle of what is compressed.
  virtual std::size_t read(std::span<char> to) = 0;
  // Bytes of the file itself that were read so far.
  virtual std::int64_t consumed() const = 0;
};

// By the file's first bytes. Several compressed parts one behind the other are one stream, as gzip and zstd
// have it.
std::unique_ptr<ByteStream> open_stream(const std::string& path);

}  // namespace tessera::cli
