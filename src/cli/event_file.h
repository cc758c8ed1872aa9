// TensorBoard's event files: scalars by step, in the format that TensorBoard reads. Frames and messages are
// written by hand, so that no protobuf library is needed.
//
// A file is a sequence of records: the length as 8 bytes, a masked CRC-32C of these, the bytes, and a masked
// CRC-32C of them, all little-endian (TFRecord). Each record is an Event of event.proto.
#pragma once

#include <cstdint>
#include <fstream>
#include <span>
#include <string>
#include <string_view>

namespace tessera::cli {

struct Scalar {
  std::string_view tag;  // such as "loss/train": TensorBoard groups by what stands before the slash
  double value = 0.0;    // written as a float
};

class EventFile {
 public:
  EventFile() = default;  // writes nowhere
  // Makes a new file in the folder, and the folder if there is none: TensorBoard reads all of a folder's
  // files together, so a run that continues adds one. In earlier files, `first_step` and later ones then no
  // longer count. Throws EnvironmentError naming `key`, here and later, if it cannot be written.
  EventFile(const char* key, const std::string& folder, std::int64_t first_step);

  explicit operator bool() const { return out_.is_open(); }
  // Writes the scalars of a step at once, in one record, with the present time.
  void write(std::int64_t step, std::span<const Scalar> scalars);

 private:
  void write_record(const std::string& event);

  std::string key_, path_;
  std::ofstream out_;
};

}  // namespace tessera::cli
