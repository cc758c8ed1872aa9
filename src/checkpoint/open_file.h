// A checkpoint's file that is open for reading, and its checks.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "src/checkpoint/checksum.h"
#include "src/checkpoint/header.h"

namespace tessera::checkpoint {

struct OpenFile {
  FileReader reader;
  Header header;
  explicit OpenFile(const std::filesystem::path& path) : reader(path), header(decode(reader)) {}
};

// Throws EnvironmentError naming the file unless `rank` wrote it in the same save as `first`, which is rank
// 0's header.
void check_belongs(const OpenFile& file, int rank, const Header& first);

// Reads parts of a stored buffer, and checks them: block by block where the header has checksums of blocks,
// otherwise all of the buffer, whatever is asked for. Blocks of about a MiB are read once each, if parts come
// in ascending order or alternate between a few places that ascend. Where a part lies before what was read,
// and blocks have no checksums, all of the buffer is read and checked first.
class BufferReader {
 public:
  // Both outlive this.
  BufferReader(const FileReader& file, const StoredBuffer& stored) : file_(file), stored_(stored) {}

  // Calls use(piece) for bytes [begin, end) of the buffer, in order. Throws EnvironmentError naming file and
  // buffer if a checksum differs from the stored one.
  void read(std::int64_t begin, std::int64_t end,
            const std::function<void(std::span<const std::byte> piece)>& use);
  // Checks what read() could not. Throws as that does.
  void finish();

 private:
  // A block in memory.
  struct Kept {
    std::int64_t block = -1;
    std::int64_t used = 0;  // the most recent has the highest
    std::vector<std::byte> bytes = {};
  };
  std::span<const std::byte> load(std::int64_t block);
  Kept& room();
  void check(std::uint64_t found, std::uint64_t expected) const;

  const FileReader& file_;
  const StoredBuffer& stored_;
  std::vector<Kept> kept_;
  std::int64_t uses_ = 0;
  std::int64_t furthest_ = -1;  // of the blocks that were asked for
  bool alternates_ = false;     // one was asked for again, or one before it
  // Where blocks have no checksums of their own:
  std::int64_t checked_ = 0;  // so many blocks, the first ones
  Checksum checksum_;         // of these
};

}  // namespace tessera::checkpoint
