// The header of a safetensors file: header bytes (uint64) | JSON | tensors, one after the other.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "src/checkpoint/file.h"
#include "tessera/dtype.h"
#include "tessera/shape.h"

namespace tessera::checkpoint {

// The largest header, in bytes; this is the format's own limit.
inline constexpr std::int64_t kMostHeaderBytes = 100'000'000;

struct TensorEntry {
  std::string name;
  std::string dtype;  // "F32"
  Shape shape;
  std::int64_t begin = 0;  // bytes, from the start of the file
  std::int64_t end = 0;
};

// The name of a type in files, and the type of a name; nothing for a type that is not supported for weights.
std::string_view stored_name(DType type);
std::optional<DType> weight_type(std::string_view stored);

// Parses a header's JSON. Returns the tensors, ascending by begin. The tensors begin at `data_begin` and must
// end at `file_bytes`. Throws EnvironmentError naming `source` and the tensor if the header contradicts
// itself or the file: for offsets that are outside the file, overlap, leave holes or do not match type and
// shape, for a name that occurs twice, and for text that is not of the format.
std::vector<TensorEntry> parse_tensors(std::string_view json, std::int64_t data_begin,
                                       std::int64_t file_bytes, const std::string& source);
// The same for an open file.
std::vector<TensorEntry> read_tensors(const FileReader& file);

// Makes the bytes before the tensors of a file that stores them in the given order. Sets their begin and end.
std::string encode_tensors(std::vector<TensorEntry>& tensors);

}  // namespace tessera::checkpoint
