// What a checkpoint file says of itself, and its form on the disk:
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

// One stored buffer: a state of a flat, this rank's shard of it or the whole.
struct StoredBuffer {
  std::string unit;  // for messages
  FlatId flat = 0;
  State state = State::parameter;
  bool whole = false;
  std::int64_t offset = 0;  // in the file
  std::int64_t bytes = 0;
  std::uint64_t checksum = 0;  // XXH3, 64 bits
};

struct StoredParameter {
  std::string name;
  Shape shape;
  std::string dtype;
  bool trainable = true;
  std::string tied_to;
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
  static constexpr int kUnknownMoments = -1;  // where an earlier build wrote it
  int moments = kUnknownMoments;              // that the optimizer keeps of an element
  std::string layout;                         // fingerprint of `units` and the shards
  std::int64_t parameter_numel = 0;
  std::vector<int> ranks;  // that have a file, ascending; empty where an earlier build wrote it
  // Of the checksums of all ranks' buffers: what tells the files of two runs apart that are alike otherwise.
  // 0 where an earlier build wrote it.
  std::uint64_t contents = 0;
  std::vector<StoredUnit> units;
  std::vector<StoredBuffer> buffers;
  std::int64_t file_bytes = 0;  // set by encode() and decode()
  std::uint64_t checksum = 0;   // of all the above as it is stored; set by decode()
};

// As it is stored, in one line.
std::string to_text(const std::vector<StoredUnit>& units);

// The text of a header in a file of so many bytes, behind what comes before it.
std::vector<std::byte> with_prefix(std::string_view text, std::int64_t file_bytes);

// Sets the buffers' offsets and file_bytes, and returns all bytes that come before the first buffer.
std::vector<std::byte> encode(Header& header);

// Reads and checks a file's header. EnvironmentError where it is no checkpoint, damaged or truncated;
// UnsupportedError for another version.
Header decode(const FileReader& file);

}  // namespace tessera::checkpoint
