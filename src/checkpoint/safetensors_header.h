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

// The most that a header may take; the format's own limit.
inline constexpr std::int64_t kMostHeaderBytes = 100'000'000;

struct TensorEntry {
  std::string name;
  std::string dtype;  // "F32"
  Shape shape;
  std::int64_t begin = 0;  // bytes, from the start of the file
  std::int64_t end = 0;
};

// The name of a type in files, and back; nothing for a type that weights do not have here.
std::string_view stored_name(DType type);
std::optional<DType> weight_type(std::string_view stored);

// What a header's JSON says, ascending by begin. `data_begin`: where the tensors begin; `file_bytes`: where
// they must end. EnvironmentError naming `source` and the tensor where the header contradicts itself or the
// file: offsets outside it, overlapping, with holes, or not of the bytes that type and shape need; a name
// twice; something that is not of the format.
std::vector<TensorEntry> parse_tensors(std::string_view json, std::int64_t data_begin,
                                       std::int64_t file_bytes, const std::string& source);
// The same of an open file.
std::vector<TensorEntry> read_tensors(const FileReader& file);

// The first bytes of a file of these tensors, whose begin and end are set here, in the order given.
std::string encode_tensors(std::vector<TensorEntry>& tensors);

}  // namespace tessera::checkpoint
