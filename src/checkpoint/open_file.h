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

// Reads parts of a stored buffer in ascending order, and checks them: block by block where the header has
// checksums of blocks, otherwise all of the buffer, whatever is asked for. Blocks of about a MiB are read
// once each.
class BufferReader {
 public:
  // Both outlive this.
  BufferReader(const FileReader& file, const StoredBuffer& stored);

  // Calls use(piece) for bytes [begin, end) of the buffer, in order. `begin` must not be before the end of
  // the call before. Throws EnvironmentError naming file and buffer if a checksum differs from the stored
  // one.
  void read(std::int64_t begin, std::int64_t end,
            const std::function<void(std::span<const std::byte> piece)>& use);
  // Checks what read() could not. Throws as that does.
  void finish();

 private:
  std::span<const std::byte> load(std::int64_t block);
  void check(std::uint64_t found, std::uint64_t expected) const;

  const FileReader& file_;
  const StoredBuffer& stored_;
  std::vector<std::byte> memory_;
  std::int64_t block_ = -1;  // that is in the memory
  Checksum checksum_;        // of all blocks so far, where they have none of their own
};

}  // namespace tessera::checkpoint
