// Checkpoint files that are not as they were saved: one byte is another, or the header says something else
// and has the checksum of what it says.
#pragma once

#include <gtest/gtest.h>
#include <xxhash.h>

#include <array>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>

namespace tessera::testing {

// Changes one bit of a file; a second call changes it back.
inline void flip_byte(const std::filesystem::path& file, std::int64_t at) {
  std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
  stream.seekg(at);
  const int value = stream.get();
  stream.seekp(at);
  stream.put(static_cast<char>(value ^ 1));
}

// Of as many characters as before: `to` is no longer, and filled up with spaces.
inline void replace_in(std::string& text, const std::string& from, std::string to) {
  ASSERT_NE(text.find(from), std::string::npos) << from;
  to.resize(from.size(), ' ');
  text.replace(text.rfind(from), from.size(), to);
}

// Changes the text of a file's header, and what the file says of it: its checksum, and its own bytes.
template <class Edit>
void edit_header(const std::filesystem::path& file, const Edit& edit) {
  const std::uint64_t file_bytes = std::filesystem::file_size(file);
  std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
  std::array<std::uint64_t, 4> prefix{};
  stream.read(reinterpret_cast<char*>(prefix.data()), sizeof prefix);
  std::string header(prefix[1], '\0');
  stream.read(header.data(), static_cast<std::streamsize>(header.size()));
  edit(header);
  prefix[2] = XXH3_64bits(header.data(), header.size());
  prefix[3] = file_bytes;
  stream.seekp(0);
  stream.write(reinterpret_cast<const char*>(prefix.data()), sizeof prefix);
  stream.write(header.data(), static_cast<std::streamsize>(header.size()));
}

}  // namespace tessera::testing
