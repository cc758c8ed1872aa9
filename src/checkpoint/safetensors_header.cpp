#include "src/checkpoint/safetensors_header.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <span>
#include <string_view>

#include "src/checkpoint/unique_json.h"
#include "tessera/error.h"

namespace tessera::checkpoint {
namespace {

using nlohmann::json;

constexpr std::int64_t kLengthBytes = 8;
constexpr std::string_view kMetadata = "__metadata__";

struct StoredType {
  std::string_view name;
  std::int64_t bytes;
};
constexpr StoredType kStoredTypes[] = {{"F32", 4}, {"BF16", 2}, {"F16", 2},  {"F64", 8},     {"I64", 8},
                                       {"I32", 4}, {"I16", 2},  {"I8", 1},   {"U64", 8},     {"U32", 4},
                                       {"U16", 2}, {"U8", 1},   {"BOOL", 1}, {"F8_E4M3", 1}, {"F8_E5M2", 1}};

[[noreturn]] void refuse(const std::string& source, const std::string& what) {
  throw EnvironmentError(fmt::format("safetensors file '{}': {}", source, what));
}

// A whole number that fits, or −1.
std::int64_t whole(const json& value) {
  if (!value.is_number_unsigned()) return -1;
  const auto number = value.get<std::uint64_t>();
  return number <= static_cast<std::uint64_t>(INT64_MAX) ? static_cast<std::int64_t>(number) : -1;
}

std::string shown(const json& value) {
  std::string text = value.dump(-1, ' ', true, json::error_handler_t::replace);
  if (text.size() > 80) text = text.substr(0, 77) + "...";
  return text;
}

// One tensor's object, in bytes of the tensors' part of the file.
class TensorParser {
 public:
  TensorParser(const std::string& source, const std::string& name, const json& object)
      : source_(source), name_(name), object_(object) {}

  TensorEntry parse() const {
    if (!object_.is_object()) wrong("is not described by an object but", object_);
    TensorEntry entry{.name = name_, .dtype = dtype(), .shape = shape()};
    const json& offsets = field("data_offsets");
    if (!offsets.is_array() || offsets.size() != 2)
      wrong("needs data_offsets [begin, end]; they are", offsets);
    entry.begin = whole(offsets[0]);
    entry.end = whole(offsets[1]);
    if (entry.begin < 0 || entry.end < entry.begin) wrong("has impossible data_offsets", offsets);
    check_bytes(entry);
    return entry;
  }

 private:
  [[noreturn]] void wrong(const char* what, const json& value) const {
    refuse(source_, fmt::format("tensor '{}' {} {}", name_, what, shown(value)));
  }

  const json& field(const char* key) const {
    const auto found = object_.find(key);
    if (found == object_.end()) refuse(source_, fmt::format("tensor '{}' has no {}", name_, key));
    return *found;
  }

  std::string dtype() const {
    const json& value = field("dtype");
    if (!value.is_string()) wrong("has a dtype that is no text:", value);
    return value.get<std::string>();
  }

  Shape shape() const {
    const json& value = field("shape");
    if (!value.is_array()) wrong("has a shape that is no list:", value);
    Shape result;
    for (const json& dim : value) {
      result.push_back(whole(dim));
      if (result.back() < 0) wrong("has an impossible shape", value);
    }
    return result;
  }

  void check_bytes(const TensorEntry& entry) const {
    const auto* const type =
        std::ranges::find(kStoredTypes, std::string_view(entry.dtype), &StoredType::name);
    if (type == std::end(kStoredTypes)) wrong("has the unknown dtype", entry.dtype);
    std::int64_t bytes = type->bytes;
    for (const std::int64_t dim : entry.shape)
      if (__builtin_mul_overflow(bytes, dim, &bytes)) wrong("has an impossible shape", entry.shape);
    if (bytes != entry.end - entry.begin)
      refuse(source_,
             fmt::format("tensor '{}' of type {} and shape {} needs {} bytes; its data_offsets give {}",
                         name_, entry.dtype, to_string(entry.shape), bytes, entry.end - entry.begin));
  }

  const std::string& source_;
  const std::string& name_;
  const json& object_;
};

// Tensors fill their part of the file, each byte once.
void check_places(const std::vector<TensorEntry>& tensors, std::int64_t data_bytes,
                  const std::string& source) {
  std::int64_t free_from = 0;
  std::string_view previous;
  for (const TensorEntry& tensor : tensors) {
    if (tensor.end > data_bytes)
      refuse(source,
             fmt::format("tensor '{}' ends at byte {} of the data, of which the file has {}: it is truncated",
                         tensor.name, tensor.end, data_bytes));
    if (tensor.begin < free_from)
      refuse(source, fmt::format("tensor '{}' overlaps tensor '{}'", tensor.name, previous));
    if (tensor.begin > free_from)
      refuse(source, fmt::format("{} bytes before tensor '{}' belong to none", tensor.begin - free_from,
                                 tensor.name));
    free_from = tensor.end;
    previous = tensor.name;
  }
  if (free_from != data_bytes)
    refuse(source, fmt::format("{} bytes at its end belong to no tensor", data_bytes - free_from));
}

void check_metadata(const json& metadata, const std::string& source) {
  if (!metadata.is_object()) refuse(source, "its __metadata__ is no object");
  for (const auto& [key, value] : metadata.items())
    if (!value.is_string())
      refuse(source, fmt::format("its __metadata__ has a value that is no text: {}", key));
}

json parse_header(std::string_view text, const std::string& source) {
  constexpr std::size_t kMostDepth = 3;  // the header, a tensor, its shape
  try {
    return parse_unique(text, kMostDepth, [&](std::span<const std::string> keys) {
      refuse(source, keys.size() == 1 ? fmt::format("tensor '{}' stands twice in its header", keys[0])
                                      : fmt::format("tensor '{}' has {} twice", keys[0], keys.back()));
    });
  } catch (const JsonError& error) {
    refuse(source, fmt::format("its header {}", error.what()));
  }
}

}  // namespace

std::string_view stored_name(DType type) {
  return type == DType::fp32 ? "F32" : type == DType::bf16 ? "BF16" : "F16";
}

std::optional<DType> weight_type(std::string_view stored) {
  for (const DType type : {DType::fp32, DType::bf16, DType::fp16})
    if (stored == stored_name(type)) return type;
  return std::nullopt;
}

std::vector<TensorEntry> parse_tensors(std::string_view text, std::int64_t data_begin,
                                       std::int64_t file_bytes, const std::string& source) {
  const json header = parse_header(text, source);
  if (!header.is_object()) refuse(source, "its header is no JSON object");
  std::vector<TensorEntry> tensors;
  for (const auto& [name, object] : header.items()) {
    if (name == kMetadata)
      check_metadata(object, source);
    else
      tensors.push_back(TensorParser(source, name, object).parse());
  }
  std::ranges::sort(tensors, [](const TensorEntry& a, const TensorEntry& b) {
    return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
  });
  check_places(tensors, file_bytes - data_begin, source);
  for (TensorEntry& tensor : tensors) {
    tensor.begin += data_begin;
    tensor.end += data_begin;
  }
  return tensors;
}

std::vector<TensorEntry> read_tensors(const FileReader& file) {
  const std::string source = file.path().string();
  if (file.bytes() < kLengthBytes)
    refuse(source, fmt::format("it has {} bytes, too few for a header", file.bytes()));
  std::uint64_t length = 0;
  file.read(0, std::as_writable_bytes(std::span(&length, 1)));
  if (length > static_cast<std::uint64_t>(kMostHeaderBytes))
    refuse(source,
           fmt::format("its header claims {} bytes; at most {} are allowed", length, kMostHeaderBytes));
  const std::int64_t data_begin = kLengthBytes + static_cast<std::int64_t>(length);
  if (data_begin > file.bytes())
    refuse(source,
           fmt::format("its header claims {} bytes, the file has {}: it is truncated", length, file.bytes()));
  std::string text(static_cast<std::size_t>(length), '\0');
  file.read(kLengthBytes, std::as_writable_bytes(std::span(text)));
  return parse_tensors(text, data_begin, file.bytes(), source);
}

std::string encode_tensors(std::vector<TensorEntry>& tensors) {
  // "format" tells the transformers library that the layouts are PyTorch's.
  json header = {{kMetadata, {{"format", "pt"}}}};
  std::int64_t offset = 0;
  for (TensorEntry& tensor : tensors) {
    const std::int64_t bytes = tensor.end - tensor.begin;
    header[tensor.name] = {
        {"dtype", tensor.dtype}, {"shape", tensor.shape}, {"data_offsets", {offset, offset + bytes}}};
    tensor.begin = offset;
    tensor.end = offset += bytes;
  }
  std::string text = header.dump();
  text.append((kLengthBytes - text.size() % kLengthBytes) % kLengthBytes, ' ');  // aligns the tensors
  const auto length = static_cast<std::uint64_t>(text.size());
  const std::int64_t data_begin = kLengthBytes + static_cast<std::int64_t>(length);
  for (TensorEntry& tensor : tensors) {
    tensor.begin += data_begin;
    tensor.end += data_begin;
  }
  std::string result(kLengthBytes, '\0');
  std::memcpy(result.data(), &length, kLengthBytes);
  return result + text;
}

}  // namespace tessera::checkpoint
