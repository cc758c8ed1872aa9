// A checkpoint's file that was opened for reading, and what must hold of it.
#pragma once

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

// EnvironmentError naming file and buffer unless this is the checksum of the bytes that were stored.
void check_checksum(const std::filesystem::path& file, const StoredBuffer& stored, std::uint64_t found);

}  // namespace tessera::checkpoint
