#include "src/cli/event_file.h"

#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <bit>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>

#include "tessera/error.h"

namespace tessera::cli {
namespace {

// Castagnoli's polynomial, reflected (RFC 3720, appendix B.4).
constexpr std::array<std::uint32_t, 256> crc_table() {
  std::array<std::uint32_t, 256> table{};
  for (std::uint32_t byte = 0; byte < 256; ++byte) {
    std::uint32_t rest = byte;
    for (int bit = 0; bit < 8; ++bit) rest = (rest >> 1) ^ ((rest & 1) != 0 ? 0x82F63B78U : 0U);
    table[byte] = rest;
  }
  return table;
}

// As TFRecord stores it: rotated and shifted, so that a checksum of data that has checksums is another.
std::uint32_t masked_crc(std::string_view bytes) {
  static constexpr std::array<std::uint32_t, 256> kTable = crc_table();
  std::uint32_t crc = ~0U;
  for (const char byte : bytes) crc = (crc >> 8) ^ kTable[(crc ^ static_cast<unsigned char>(byte)) & 0xFF];
  return std::rotr(~crc, 15) + 0xA282EAD8U;
}

static_assert(std::endian::native == std::endian::little);
template <typename T>
void append(std::string& bytes, const T& value) {
  bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
}

// Protocol Buffers' wire format: varints, and fields of type 0 (varint), 1 (8 bytes), 2 (length), 5 (4
// bytes).
void append_varint(std::string& bytes, std::uint64_t value) {
  for (; value >= 0x80; value >>= 7) bytes += static_cast<char>(0x80 | (value & 0x7F));
  bytes += static_cast<char>(value);
}
void append_key(std::string& bytes, int field, int type) {
  append_varint(bytes, static_cast<std::uint64_t>(field << 3 | type));
}
void append_text(std::string& bytes, int field, std::string_view text) {
  append_key(bytes, field, 2);
  append_varint(bytes, text.size());
  bytes += text;
}

double now() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

// Event: wall_time = 1, step = 2, file_version = 3, summary = 5, session_log = 7.
std::string event_of(std::int64_t step) {
  std::string event;
  append_key(event, 1, 1);
  append(event, now());
  if (step != 0) {
    append_key(event, 2, 0);
    append_varint(event, static_cast<std::uint64_t>(step));
  }
  return event;
}

// Summary: repeated Value = 1, with tag = 1 and simple_value = 2.
std::string summary_of(std::span<const Scalar> scalars) {
  std::string summary;
  for (const Scalar& scalar : scalars) {
    std::string value;
    append_text(value, 1, scalar.tag);
    append_key(value, 2, 5);
    append(value, static_cast<float>(scalar.value));
    append_text(summary, 1, value);
  }
  return summary;
}

// Unique in the folder, and later ones sort behind: TensorBoard reads a folder's files in this order.
std::filesystem::path new_path(const std::filesystem::path& folder) {
  const auto micros = std::chrono::duration_cast<std::chrono::microseconds>(
                          std::chrono::system_clock::now().time_since_epoch())
                          .count();
  return folder / fmt::format("events.out.tfevents.{:010}.{:06}.{}.tessera", micros / 1'000'000,
                              micros % 1'000'000, ::getpid());
}

}  // namespace

EventFile::EventFile(const char* key, const std::string& folder, std::int64_t first_step) : key_(key) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) throw EnvironmentError(fmt::format("{}: cannot make '{}': {}", key_, folder, error.message()));
  path_ = new_path(folder).string();
  errno = 0;
  out_.open(path_, std::ios::binary);
  if (!out_)
    throw EnvironmentError(
        fmt::format("{}: cannot write '{}': {}", key_, path_, std::strerror(errno == 0 ? EIO : errno)));
  std::string version = event_of(0);
  append_text(version, 3, "brain.Event:2");
  write_record(version);
  // SessionLog: status = 1, of which START is 1: earlier events from this step on are dropped.
  std::string start = event_of(first_step), session;
  append_key(session, 1, 0);
  append_varint(session, 1);
  append_text(start, 7, session);
  write_record(start);
}

void EventFile::write(std::int64_t step, std::span<const Scalar> scalars) {
  if (!out_.is_open()) return;
  std::string event = event_of(step);
  append_text(event, 5, summary_of(scalars));
  write_record(event);
}

void EventFile::write_record(const std::string& event) {
  std::string length, record;
  append(length, static_cast<std::uint64_t>(event.size()));
  record = length;
  append(record, masked_crc(length));
  record += event;
  append(record, masked_crc(event));
  errno = 0;
  out_.write(record.data(), static_cast<std::streamsize>(record.size())).flush();
  if (!out_)
    throw EnvironmentError(
        fmt::format("{}: cannot write '{}': {}", key_, path_, std::strerror(errno == 0 ? EIO : errno)));
}

}  // namespace tessera::cli
