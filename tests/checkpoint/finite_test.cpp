// Values that are not finite are found by tensor and index, whichever rank has the part that they are in.
#include "src/checkpoint/finite.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <limits>

#include "tessera/error.h"
#include "tests/trainer/temporary_folder.h"

namespace tessera::testing {
namespace {

using namespace checkpoint;
namespace fs = std::filesystem;

constexpr std::int64_t kRows = 5, kColumns = 7;

// Two tensors [5, 7] of a type, all 1 but for element `at` of the second one.
fs::path write_file(const fs::path& path, DType type, std::uint32_t one, std::uint32_t other,
                    std::int64_t at) {
  const auto bytes = static_cast<std::size_t>(bytes_of(type));
  std::vector<TensorEntry> tensors(2);
  for (TensorEntry& tensor : tensors)
    tensor = {.name = &tensor == tensors.data() ? "a" : "b",
              .dtype = std::string(stored_name(type)),
              .shape = {kRows, kColumns},
              .end = kRows * kColumns * bytes_of(type)};
  std::string text = encode_tensors(tensors);
  for (std::int64_t i = 0; i < 2 * kRows * kColumns; ++i) {
    const std::uint32_t bits = i == kRows * kColumns + at ? other : one;
    text.append(reinterpret_cast<const char*>(&bits), bytes);
  }
  std::ofstream(path, std::ios::binary) << text;
  return path;
}

// What the ranks of a world say of the file, and how many.
std::string said(const fs::path& path, int world, int& ranks) {
  const SafetensorsFiles files(path);
  std::vector<const SafetensorsFiles::Tensor*> tensors;
  for (const auto& [name, tensor] : files.tensors()) tensors.push_back(&tensor);
  std::string message;
  ranks = 0;
  for (int rank = 0; rank < world; ++rank) try {
      check_finite(tensors, rank, world, "the option");
    } catch (const UsageError& error) {
      message = error.what();
      ++ranks;
    }
  return message;
}

TEST(Finite, OneRankFindsTheElement) {
  struct Case {
    DType type;
    std::uint32_t one, other;
    const char* shown;
  };
  const TemporaryFolder folder;
  const fs::path path = folder.file("w.safetensors");
  for (const Case& of : {Case{DType::fp32, 0x3f800000, 0x7f800000, "inf"},
                         {DType::fp32, 0x3f800000, 0xffc00000, "nan"},
                         {DType::bf16, 0x3f80, 0xff80, "-inf"},
                         {DType::fp16, 0x3c00, 0x7e00, "nan"}})
    for (const std::int64_t at : {std::int64_t{0}, std::int64_t{17}, kRows * kColumns - 1})
      for (const int world : {1, 2, 3, 8, 100}) {
        write_file(path, of.type, of.one, of.other, at);
        int ranks = 0;
        const std::string message = said(path, world, ranks);
        EXPECT_EQ(ranks, 1) << world;
        for (const std::string& part :
             {"tensor 'b' of '" + path.string() + "' is " + of.shown,
              " at [" + std::to_string(at / kColumns) + ", " + std::to_string(at % kColumns) + "], element " +
                  std::to_string(at) + ";",
              std::string("unless the option is true")})
          EXPECT_NE(message.find(part), std::string::npos) << part << " is not in: " << message;
      }
}

TEST(Finite, TheLargestValuesAreTaken) {
  const TemporaryFolder folder;
  const fs::path path = folder.file("w.safetensors");
  int ranks = 0;
  for (const auto& [type, most] : {std::pair(DType::fp32, 0x7f7fffffU),
                                   {DType::bf16, 0x7f7fU},
                                   {DType::fp16, 0x7bffU},
                                   {DType::fp16, 0xfbffU}})
    EXPECT_EQ(said(write_file(path, type, 0, most, 3), 3, ranks), "");
}

}  // namespace
}  // namespace tessera::testing
