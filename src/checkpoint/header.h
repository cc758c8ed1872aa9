// The header of a checkpoint file, and the file's format:
//   magic, header bytes, header checksum, file bytes (4 × uint64) | header (JSON) | buffers, each aligned
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "src/checkpoint/file.h"
#include "tessera/checkpoint.h"

namespace tessera::checkpoint {

// One stored buffer: a state of a flat, either this rank's part of it or the whole.
struct StoredBuffer {
  std::string unit;  // for messages
  FlatId flat = 0;
  StateKind state = StateKind::parameter;
  bool whole = false;
  std::int64_t offset = 0;  // in the file
  std::int64_t bytes = 0;
  std::uint64_t checksum = 0;  // XXH3, 64 bits; of `blocks` if there are any, otherwise of all bytes
  // The checksums of its blocks of kChecksumBytes, the last of which may be shorter: parts of it can be
  // checked by themselves. Empty in a checkpoint of one tensor rank.
  std::vector<std::uint64_t> blocks = {};
};
inline constexpr std::int64_t kChecksumBytes = std::int64_t{1} << 20;
// The number of such blocks in so many bytes.
constexpr std::int64_t blocks_in(std::int64_t bytes) { return (bytes + kChecksumBytes - 1) / kChecksumBytes; }

struct StoredParameter {
  std::string name;
  Shape shape;
  std::string dtype;
  bool trainable = true;
  std::string tied_to;
  // Not stored, and as here, in a checkpoint of one tensor rank.
  Cut cut = {};
  GradientOver gradient = GradientOver::copied;
  bool operator==(const StoredParameter&) const = default;
};

struct StoredUnit {
  std::string name;
  std::vector<StoredParameter> parameters;
};

struct Header {
  int rank = 0;
  RunState state;
  Engine::Counters counters;
  Mesh mesh;
  Placements placements;
  std::string optimizer;
  static constexpr int kUnknownMoments = -1;  // if an earlier build wrote the file
  int moments = kUnknownMoments;              // number of moments that the optimizer keeps per element
  std::string layout;                         // fingerprint of `units` and the shards
  std::int64_t parameter_numel = 0;
  std::vector<int> ranks;  // ranks that have a file, ascending; empty if an earlier build wrote the file
  // A hash of the checksums of all ranks' buffers. It distinguishes files of two runs that are equal
  // otherwise. 0 if an earlier build wrote the file.
  std::uint64_t contents = 0;
  IdVector<StoredUnit> units;
  std::vector<StoredBuffer> buffers;
  std::int64_t file_bytes = 0;  // set by encode() and decode()
  std::uint64_t checksum = 0;   // of the stored header; set by decode()
};

// The units as they are stored, in one line.
std::string to_text(const std::vector<StoredUnit>& units);

// The header's text with its prefix (magic, sizes, checksum), for a file of `file_bytes` bytes.
std::vector<std::byte> with_prefix(std::string_view text, std::int64_t file_bytes);

// Sets the buffers' offsets and file_bytes. Returns all bytes that come before the first buffer.
std::vector<std::byte> encode(Header& header);

// Reads and checks a file's header. Throws EnvironmentError if the file is not a checkpoint, damaged or
// truncated, and UnsupportedError for a version that this build does not read.
Header decode(const FileReader& file);

}  // namespace tessera::checkpoint
