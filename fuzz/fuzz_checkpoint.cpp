// Headers of checkpoint files. What is accepted describes buffers that fill the file, one after the other,
// and is written again as the same header.
#include <span>
#include <string_view>
#include <vector>

#include "fuzz/fuzz.h"
#include "src/checkpoint/header.h"
#include "tessera/error.h"

using namespace tessera;
using namespace tessera::checkpoint;

namespace {

constexpr std::int64_t kPrefixBytes = 32;

// A file that begins with these bytes and has so many; what follows is a hole.
fuzz::MemoryFile file_of(std::span<const std::byte> begin, std::int64_t bytes) {
  return {reinterpret_cast<const std::uint8_t*>(begin.data()), begin.size(), bytes};
}

bool decoded(const fuzz::MemoryFile& file, Header& header) {
  try {
    header = decode(FileReader(file.path()));
    return true;
  } catch (const EnvironmentError&) {
    return false;
  } catch (const UnsupportedError&) {
    return false;
  }
}

void check_buffers(const Header& header, std::int64_t begin) {
  for (const StoredBuffer& buffer : header.buffers) {
    fuzz::require(buffer.offset >= begin && buffer.bytes >= 0, "buffers overlap");
    const auto blocks = static_cast<std::int64_t>(buffer.blocks.size());
    fuzz::require(blocks == 0 || blocks == blocks_in(buffer.bytes), "checksums of other blocks");
    begin = buffer.offset + buffer.bytes;
  }
  fuzz::require(begin == header.file_bytes, "buffers do not fill the file");
  fuzz::require(header.rank >= 0 && header.rank < header.mesh.world(), "a rank outside its mesh");
}

void check_again(Header header) {
  const std::vector<std::byte> bytes = encode(header);
  const fuzz::MemoryFile file = file_of(bytes, header.file_bytes);
  Header again;
  fuzz::require(decoded(file, again), "what was written is refused");
  fuzz::require(encode(again) == bytes, "a header changed in writing");
}

}  // namespace

// Two bytes that say how much data follows the header, in blocks of 256 bytes; then the header's text.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t bytes) {
  Header header;
  decoded(fuzz::MemoryFile(data, bytes), header);
  if (bytes < 2) return 0;
  const std::string_view text(reinterpret_cast<const char*>(data) + 2, bytes - 2);
  const auto begin = kPrefixBytes + static_cast<std::int64_t>(text.size());
  const std::int64_t data_bytes = 256 * (data[0] + 256 * std::int64_t{data[1]});
  const std::int64_t file_bytes = data_bytes == 0 ? begin : round_up(begin, kAlignmentBytes) + data_bytes;
  if (!decoded(file_of(with_prefix(text, file_bytes), file_bytes), header)) return 0;
  check_buffers(header, begin);
  check_again(header);
  return 0;
}
