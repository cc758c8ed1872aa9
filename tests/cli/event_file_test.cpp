// Event files, read back by the format's own rules. tensorboard_test.sh has TensorBoard read one.
#include "src/cli/event_file.h"

#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <optional>
#include <vector>

#include "tessera/error.h"
#include "tests/trainer/temporary_folder.h"

namespace tessera::cli {
namespace {

// Bit by bit, unlike the table that is tested.
std::uint32_t crc32c(std::string_view bytes) {
  std::uint32_t crc = 0xFFFFFFFFU;
  for (const char byte : bytes) {
    crc ^= static_cast<unsigned char>(byte);
    for (int bit = 0; bit < 8; ++bit) crc = (crc & 1) != 0 ? (crc >> 1) ^ 0x82F63B78U : crc >> 1;
  }
  return ~crc;
}
std::uint32_t masked(std::string_view bytes) {
  const std::uint32_t crc = crc32c(bytes);
  return ((crc >> 15) | (crc << 17)) + 0xA282EAD8U;
}

template <typename T>
T number_at(const std::string& bytes, std::size_t at) {
  T value{};
  std::memcpy(&value, bytes.data() + at, sizeof value);
  return value;
}

std::vector<std::string> records(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  const std::string all{std::istreambuf_iterator<char>(in), {}};
  std::vector<std::string> found;
  for (std::size_t at = 0; at < all.size();) {
    const auto length = number_at<std::uint64_t>(all, at);
    EXPECT_EQ(number_at<std::uint32_t>(all, at + 8), masked(all.substr(at, 8)));
    found.push_back(all.substr(at + 12, length));
    EXPECT_EQ(number_at<std::uint32_t>(all, at + 12 + length), masked(found.back()));
    at += 16 + length;
  }
  return found;
}

// Fields of a message: varints and fixed numbers as they are stored, texts and messages as bytes.
std::multimap<int, std::string> fields(const std::string& message) {
  std::multimap<int, std::string> found;
  std::size_t at = 0;
  const auto varint = [&] {
    std::uint64_t value = 0;
    for (int shift = 0;; shift += 7) {
      const auto byte = static_cast<unsigned char>(message.at(at++));
      value |= std::uint64_t{byte & 0x7FU} << shift;
      if (byte < 0x80) return value;
    }
  };
  while (at < message.size()) {
    const std::uint64_t key = varint();
    std::size_t bytes = 0;
    if (key % 8 == 0) {
      found.emplace(static_cast<int>(key / 8), std::to_string(varint()));
      continue;
    }
    bytes = key % 8 == 1 ? 8 : key % 8 == 5 ? 4 : static_cast<std::size_t>(varint());
    found.emplace(static_cast<int>(key / 8), message.substr(at, bytes));
    at += bytes;
  }
  return found;
}

std::string only_file(const std::string& folder) {
  std::vector<std::string> files;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) files.push_back(entry.path());
  EXPECT_EQ(files.size(), 1u);
  return files.at(0);
}

TEST(EventFile, HasTheScalarsOfEachStep) {
  EXPECT_EQ(crc32c("123456789"), 0xE3069283U);  // the check value of CRC-32C
  const testing::TemporaryFolder folder;
  const std::string into = folder.file("a/b");
  {
    EventFile file("run.tensorboard", into, 1);
    const Scalar first[] = {{"loss/train", 2.5}, {"rate", -1e-3}}, second[] = {{"loss/train", 1.25}};
    file.write(1, first);
    file.write(300, second);
  }
  const std::string path = only_file(into);
  EXPECT_EQ(std::filesystem::path(path).filename().string().rfind("events.out.tfevents.", 0), 0u) << path;
  const std::vector<std::string> found = records(path);
  ASSERT_EQ(found.size(), 4u);
  EXPECT_EQ(fields(found[0]).find(3)->second, "brain.Event:2");
  EXPECT_GT(number_at<double>(fields(found[0]).find(1)->second, 0), 1.7e9) << "the time";
  const auto event = fields(found[2]);
  EXPECT_EQ(event.find(2)->second, "1");
  const auto summary = fields(event.find(5)->second);
  ASSERT_EQ(summary.count(1), 2u);
  const auto value = fields(std::next(summary.begin())->second);
  EXPECT_EQ(value.find(1)->second, "rate");
  EXPECT_EQ(number_at<float>(value.find(2)->second, 0), -1e-3f);
  EXPECT_EQ(fields(found[3]).find(2)->second, "300");
}

TEST(EventFile, OfARunThatContinuesDropsWhatComesAgain) {
  const testing::TemporaryFolder folder;
  { EventFile file("run.tensorboard", folder.file("c"), 6); }
  const std::vector<std::string> found = records(only_file(folder.file("c")));
  ASSERT_EQ(found.size(), 2u);
  const auto event = fields(found[1]);
  EXPECT_EQ(event.find(2)->second, "6");
  EXPECT_EQ(fields(event.find(7)->second).find(1)->second, "1");
}

TEST(EventFile, ThatCannotBeWrittenNamesTheKey) {
  const testing::TemporaryFolder folder;
  const std::string text = "x";
  const std::string file = folder.write("file", std::as_bytes(std::span(text)));
  try {
    const EventFile none("run.tensorboard", file + "/below", 1);
    ADD_FAILURE() << "made a folder below a file";
  } catch (const EnvironmentError& error) {
    EXPECT_EQ(std::string(error.what()).rfind("run.tensorboard: cannot make '", 0), 0u) << error.what();
  }
  EventFile nowhere;
  nowhere.write(1, {});
  EXPECT_FALSE(nowhere);
}

}  // namespace
}  // namespace tessera::cli
