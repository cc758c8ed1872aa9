// A checkpoint's file that is open for reading, and its checks.
#pragma once

#include <functional>
#include <span>

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

// Reads a whole buffer and calls use(piece, offset in the buffer) for each piece of about a MiB. After the
// last piece, throws EnvironmentError naming file and buffer if the checksum differs from the stored one.
void read_buffer(const FileReader& file, const StoredBuffer& stored,
                 const std::function<void(std::span<const std::byte> piece, std::int64_t place)>& use);

}  // namespace tessera::checkpoint
