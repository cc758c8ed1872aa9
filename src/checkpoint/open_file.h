// A checkpoint's file that was opened for reading, and what must hold of it.
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

// EnvironmentError naming the file unless `rank` wrote it in the save that wrote `first`, the header of rank
// 0.
void check_belongs(const OpenFile& file, int rank, const Header& first);

// Reads all of a buffer and calls use(piece, its place in the buffer) for every MiB or so. EnvironmentError
// naming file and buffer, behind the last one, unless their checksum is that of what was stored.
void read_buffer(const FileReader& file, const StoredBuffer& stored,
                 const std::function<void(std::span<const std::byte> piece, std::int64_t place)>& use);

}  // namespace tessera::checkpoint
