// What a safetensors header may say, and how each lie is refused: with the file's name and the tensor's.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <fstream>
#include <string>

#include "src/checkpoint/safetensors_files.h"
#include "tessera/error.h"
#include "tests/refusal.h"
#include "tests/trainer/temporary_folder.h"

namespace tessera::checkpoint {
namespace {

using ::testing::HasSubstr;

std::string refusal(const std::function<void()>& work) { return testing::refusal<EnvironmentError>(work); }

// A header over a file with so many bytes of tensors.
std::string refusal_of(const std::string& header, std::int64_t data_bytes) {
  return refusal([&] { parse_tensors(header, 100, 100 + data_bytes, "x.safetensors"); });
}

std::string tensor(const std::string& fields) { return "{\"a.weight\":{" + fields + "}}"; }

TEST(SafetensorsHeader, AWellFormedOneIsRead) {
  const auto tensors = parse_tensors(
      R"({"__metadata__":{"format":"pt"},"b":{"dtype":"BF16","shape":[2,3],"data_offsets":[8,20]},)"
      R"("a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"c":{"dtype":"F32","shape":[0,7],"data_offsets":[20,20]}}  )",
      100, 120, "x");
  ASSERT_EQ(tensors.size(), 3u);
  EXPECT_EQ(tensors[0].name, "a");
  EXPECT_EQ(tensors[1].name, "b");
  EXPECT_EQ(tensors[1].dtype, "BF16");
  EXPECT_EQ(tensors[1].shape, (Shape{2, 3}));
  EXPECT_EQ(tensors[1].begin, 108);
  EXPECT_EQ(tensors[1].end, 120);
}

TEST(SafetensorsHeader, EveryLieNamesTheTensor) {
  const struct {
    std::string header;
    std::int64_t data_bytes;
    std::string message;
  } cases[] = {
      {"{", 0, "not JSON"},
      {"[]", 0, "no JSON object"},
      {"{\"a.weight\":3}", 0, "'a.weight' is not described by an object"},
      {tensor(R"("shape":[2],"data_offsets":[0,8])"), 8, "'a.weight' has no dtype"},
      {tensor(R"("dtype":"F32","data_offsets":[0,8])"), 8, "'a.weight' has no shape"},
      {tensor(R"("dtype":"F32","shape":[2])"), 8, "'a.weight' has no data_offsets"},
      {tensor(R"("dtype":7,"shape":[2],"data_offsets":[0,8])"), 8, "'a.weight' has a dtype"},
      {tensor(R"("dtype":"Q4","shape":[2],"data_offsets":[0,8])"), 8,
       "'a.weight' has the unknown dtype \"Q4\""},
      {tensor(R"("dtype":"F32","shape":2,"data_offsets":[0,8])"), 8,
       "'a.weight' has a shape that is no list"},
      {tensor(R"("dtype":"F32","shape":[-2],"data_offsets":[0,8])"), 8, "'a.weight' has an impossible shape"},
      {tensor(R"("dtype":"F32","shape":[2.0],"data_offsets":[0,8])"), 8,
       "'a.weight' has an impossible shape"},
      {tensor(R"("dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,8])"), 8,
       "'a.weight' has an impossible shape"},
      {tensor(R"("dtype":"F32","shape":[2],"data_offsets":[0])"), 8, "'a.weight' needs data_offsets"},
      {tensor(R"("dtype":"F32","shape":[2],"data_offsets":[8,0])"), 8,
       "'a.weight' has impossible data_offsets"},
      {tensor(R"("dtype":"F32","shape":[2],"data_offsets":[-8,0])"), 8,
       "'a.weight' has impossible data_offsets"},
      {tensor(R"("dtype":"F32","shape":[2],"data_offsets":[0,18446744073709551615])"), 8,
       "'a.weight' has impossible data_offsets"},
      {tensor(R"("dtype":"F32","shape":[3],"data_offsets":[0,8])"), 8,
       "'a.weight' of type F32 and shape [3] needs 12"},
      {tensor(R"("dtype":"F32","shape":[2],"data_offsets":[0,8])"), 7,
       "'a.weight' ends at byte 8 of the data"},
      {tensor(R"("dtype":"F32","shape":[2],"data_offsets":[0,8])"), 9, "1 bytes at its end"},
      {tensor(R"("dtype":"F32","shape":[2],"data_offsets":[4,12])"), 12, "4 bytes before tensor 'a.weight'"},
      {tensor(R"("dtype":"F32","dtype":"F32","shape":[2],"data_offsets":[0,8])"), 8,
       "'a.weight' has dtype twice"},
      {R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})",
       8, "'a' stands twice"},
      {R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"b":{"dtype":"F32","shape":[2],"data_offsets":[4,12]}})",
       12, "tensor 'b' overlaps tensor 'a'"},
      {R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"b":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})",
       8, "overlaps"},
      {R"({"__metadata__":{"format":1}})", 0, "no text: format"},
      {R"({"__metadata__":3})", 0, "__metadata__ is no object"},
      {std::string(100000, '['), 0, "nested too deeply"},
      {tensor(R"("dtype":"F32","shape":[[2]],"data_offsets":[0,8])"), 8, "nested too deeply"},
      {R"({"__metadata__":{"format":"pt","format":"pt"}})", 0, "'__metadata__' has format twice"},
  };
  for (const auto& one : cases) {
    const std::string message = refusal_of(one.header, one.data_bytes);
    EXPECT_THAT(message, HasSubstr(one.message)) << one.header.substr(0, 200);
    EXPECT_THAT(message, HasSubstr("'x.safetensors'"));
  }
}

// A header of many experts' tensors: what stands around a tensor is not gone through for each of them, which
// took more than a minute for these.
TEST(SafetensorsHeader, ManyTensorsTakeTimeInProportion) {
  constexpr int kTensors = 50'000;
  std::string header = "{";
  for (int i = 0; i < kTensors; ++i)
    header += fmt::format(R"({}"layer.{}.weight":{{"dtype":"BF16","shape":[0,4],"data_offsets":[0,0]}})",
                          i == 0 ? "" : ",", i);
  const auto start = std::chrono::steady_clock::now();
  EXPECT_EQ(parse_tensors(header + "}", 100, 100, "x").size(), static_cast<std::size_t>(kTensors));
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(10));
  // And each is still held against all others.
  EXPECT_THAT(refusal_of(header + R"(,"layer.7.weight":{}})", 0), HasSubstr("'layer.7.weight' stands twice"));
}

// The file around the header.
TEST(SafetensorsHeader, ALengthThatLiesIsRefusedBeforeItIsRead) {
  const tessera::testing::TemporaryFolder folder;
  const auto file_of = [&](std::uint64_t length, const std::string& rest) {
    std::string text(8, '\0');
    std::memcpy(text.data(), &length, 8);
    text += rest;
    return folder.write("x.safetensors", std::as_bytes(std::span(text)));
  };
  const auto message = [](const std::string& path) {
    return refusal([&] { read_tensors(FileReader(path, kSafetensors)); });
  };
  EXPECT_EQ(message(file_of(2, "{}")), "accepted");
  EXPECT_THAT(message(file_of(3, "{}")), HasSubstr("truncated"));
  EXPECT_THAT(message(file_of(UINT64_MAX, "{}")), HasSubstr("claims 18446744073709551615 bytes"));
  EXPECT_THAT(message(file_of(1ull << 40, "{}")), HasSubstr("at most 100000000"));
  EXPECT_THAT(message(folder.write("short", std::as_bytes(std::span("abc", 3)))), HasSubstr("too few"));
}

TEST(SafetensorsHeader, AnIndexNamesFilesBesideItOnly) {
  const auto message = [](const std::string& text) { return refusal([&] { parse_index(text, "i.json"); }); };
  EXPECT_EQ(message(R"({"weight_map":{"a":"b.safetensors"}})"), "accepted");
  EXPECT_THAT(message("{"), HasSubstr("not JSON"));
  EXPECT_THAT(message("{}"), HasSubstr("no weight_map"));
  EXPECT_THAT(message(R"({"weight_map":{"a":3}})"), HasSubstr("tensor 'a' is in no named file"));
  for (const char* path : {"../b.safetensors", "/b.safetensors", "", "..", "x/y"})
    EXPECT_THAT(message(R"({"weight_map":{"a":")" + std::string(path) + "\"}}"),
                HasSubstr("no file beside it"));
  // The system would open b.
  EXPECT_THAT(message(R"({"weight_map":{"a":"b\u0000/../../c"}})"), HasSubstr("no file beside it"));
  EXPECT_THAT(message(R"({"weight_map":{"a":"b\u0000c"}})"),
              HasSubstr(R"(tensor 'a' is in "b\u0000c", which is no file beside it)"));
}

TEST(SafetensorsHeader, AnIndexSaysNothingTwice) {
  const auto message = [](const std::string& text) { return refusal([&] { parse_index(text, "i.json"); }); };
  EXPECT_THAT(message(R"({"weight_map":{"a":"b","c":"b","a":"d"}})"),
              HasSubstr("'i.json': tensor 'a' stands twice in it"));
  EXPECT_THAT(message(R"({"weight_map":{"a":"b"},"weight_map":{}})"),
              HasSubstr("key 'weight_map' stands twice in it"));
  // In objects apart from each other a key may be the same.
  EXPECT_EQ(message(R"({"metadata":{"a":[{"a":1},{"a":2}]},"weight_map":{"a":"b"}})"), "accepted");
  EXPECT_THAT(message(R"({"weight_map":{},"metadata":)" + std::string(100000, '[')), HasSubstr("too deeply"));
}

// It goes to a terminal or a log.
TEST(SafetensorsHeader, WhatIsNoTextIsNotRepeatedInTheRefusal) {
  for (const std::string& message :
       {refusal_of("{\"a\xff\":{}}", 0), refusal_of("{\"a\x1b[2J\":{}}", 0),
        refusal([] { parse_index("{\"weight_map\":{\"\xff\":\"b\"}}", "i.json"); })}) {
    EXPECT_THAT(message, HasSubstr("is not JSON"));
    EXPECT_TRUE(std::ranges::all_of(message, [](char c) { return c >= ' ' && c <= '~'; })) << message;
  }
  EXPECT_THAT(refusal_of("{\"a\xff\":{}}", 0), HasSubstr("\\xff"));
}

// A model of two files, each of one tensor of four bytes.
class TwoFiles {
 public:
  TwoFiles() {
    write("a", "1234");
    write("b", "5678");
    const std::string index = encode_index({{"a", "a.safetensors"}, {"b", "b.safetensors"}}, 8);
    folder_.write(kIndexName, std::as_bytes(std::span(index)));
  }
  void write(const std::string& name, const std::string& data) const {
    std::vector<TensorEntry> tensors = {{.name = name, .dtype = "U8", .shape = {4}, .begin = 0, .end = 4}};
    const std::string text = encode_tensors(tensors) + data;
    folder_.write(name + ".safetensors", std::as_bytes(std::span(text)));
  }
  std::string file(const std::string& name) const { return folder_.file(name); }

 private:
  tessera::testing::TemporaryFolder folder_;
};

std::string read_of(const SafetensorsFiles& files, const std::string& name) {
  const SafetensorsFiles::Tensor& tensor = *files.find(name);
  std::string bytes(static_cast<std::size_t>(tensor.entry.end - tensor.entry.begin), '\0');
  tensor.file->read(tensor.entry.begin, std::as_writable_bytes(std::span(bytes)));
  return bytes;
}

// In whatever order, and none but the one that is read is open.
TEST(SafetensorsFiles, OneFileIsOpenAtATime) {
  const TwoFiles model;
  const auto open_files = [] {
    return std::distance(std::filesystem::directory_iterator("/proc/self/fd"), {});
  };
  const auto before = open_files();
  const SafetensorsFiles files(model.file(""));
  for (const char* name : {"b", "a", "a", "b"}) {
    EXPECT_EQ(read_of(files, name), name[0] == 'a' ? "1234" : "5678");
    EXPECT_EQ(open_files(), before + 1);
  }
}

// Whose header may say something else.
TEST(SafetensorsFiles, AFileThatIsReplacedMeanwhileIsRefused) {
  const TwoFiles model;
  const SafetensorsFiles files(model.file(""));
  model.write("a", "abcd");
  EXPECT_THAT(refusal([&] { read_of(files, "a"); }),
              HasSubstr("'" + model.file("a.safetensors") + "' was changed after its header was read"));
  std::filesystem::remove(model.file("a.safetensors"));
  EXPECT_THAT(refusal([&] { read_of(files, "a"); }), HasSubstr("No such file"));
  EXPECT_EQ(read_of(files, "b"), "5678");
}

TEST(SafetensorsHeader, WhatIsWrittenIsRead) {
  std::vector<TensorEntry> tensors = {{.name = "z", .dtype = "F32", .shape = {3}, .begin = 0, .end = 12},
                                      {.name = "a", .dtype = "BF16", .shape = {2, 2}, .begin = 0, .end = 8}};
  const std::string head = encode_tensors(tensors);
  EXPECT_EQ(head.size() % 8, 0u);
  const auto begin = static_cast<std::int64_t>(head.size());
  const auto read = parse_tensors(std::string_view(head).substr(8), begin, begin + 20, "x");
  ASSERT_EQ(read.size(), 2u);
  for (std::size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(read[i].name, tensors[i].name);
    EXPECT_EQ(read[i].begin, tensors[i].begin);
    EXPECT_EQ(read[i].end, tensors[i].end);
  }
}

}  // namespace
}  // namespace tessera::checkpoint
