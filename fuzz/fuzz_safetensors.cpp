// Files, headers and indexes of safetensors. What is accepted lies inside the file, each byte once, and is
// written again as the same tensors.
#include <string_view>

#include "fuzz/fuzz.h"
#include "src/checkpoint/safetensors_files.h"
#include "tessera/error.h"

using namespace tessera;
using namespace tessera::checkpoint;

namespace {

void check_tensors(std::vector<TensorEntry> tensors, std::int64_t file_bytes) {
  std::int64_t data_bytes = 0;
  for (const TensorEntry& tensor : tensors) {
    fuzz::require(tensor.begin >= 8 && tensor.end <= file_bytes, "a tensor lies outside the file");
    data_bytes += tensor.end - tensor.begin;
  }
  for (std::size_t i = 1; i < tensors.size(); ++i)
    fuzz::require(tensors[i].begin == tensors[i - 1].end, "tensors overlap or leave a hole");
  const std::string head = encode_tensors(tensors);
  const auto begin = static_cast<std::int64_t>(head.size());
  const auto again = parse_tensors(std::string_view(head).substr(8), begin, begin + data_bytes, "written");
  fuzz::require(again.size() == tensors.size(), "tensors were lost in writing");
}

void check_index(const std::map<std::string, std::string>& files) {
  for (const auto& [tensor, file] : files)
    fuzz::require(!file.empty() && file.find_first_of({"/\0", 2}) == file.npos && file != "..",
                  "a file outside the folder");
  fuzz::require(parse_index(encode_index(files, 1), "written") == files, "an index changed in writing");
}

// Nothing where it is refused as it should be.
template <typename Read>
auto accepted(const Read& read) -> decltype(read()) try {
  return read();
} catch (const EnvironmentError&) {
  return {};
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t bytes) {
  const fuzz::MemoryFile file(data, bytes);
  const auto file_bytes = static_cast<std::int64_t>(bytes);
  check_tensors(accepted([&] { return read_tensors(FileReader(file.path(), kSafetensors)); }), file_bytes);

  // The same text as a header whose length is right, before as much data as the seed describes.
  const std::string_view text(reinterpret_cast<const char*>(data), bytes);
  constexpr std::int64_t kLengthBytes = 8, kDataBytes = 10;
  const std::int64_t begin = kLengthBytes + file_bytes;
  check_tensors(accepted([&] { return parse_tensors(text, begin, begin + kDataBytes, "header"); }),
                begin + kDataBytes);
  check_index(accepted([&] { return parse_index(text, "index"); }));
  return 0;
}
