// The texts of small programs are those that are kept beside this file. To record them anew, after a change
// of programs that is meant:
//   TESSERA_RECORD=tests/program/golden golden_test
// Then read the difference: it is what the change does.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <sstream>

#include "tessera/program_text.h"
#include "tests/program/golden_programs.h"

namespace tessera::testing {
namespace {

namespace fs = std::filesystem;

const std::vector<GoldenPrograms>& all_golden() {
  static const std::vector<GoldenPrograms> all = golden_programs();
  return all;
}

std::string read(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

// "line 3 is\n…\nand was\n…", of the first that differs; empty where all are equal.
std::string first_difference(const std::string& seen, const std::string& known) {
  std::istringstream a(seen), b(known);
  std::string mine, theirs;
  for (int number = 1; a || b; ++number) {
    const bool has_mine = static_cast<bool>(std::getline(a, mine));
    const bool has_theirs = static_cast<bool>(std::getline(b, theirs));
    if (has_mine == has_theirs && (!has_mine || mine == theirs)) continue;
    return "line " + std::to_string(number) + " is\n  " + (has_mine ? mine : "(none)") + "\nand was\n  " +
           (has_theirs ? theirs : "(none)");
  }
  return seen == known ? "" : "one of both ends without a newline";
}

class Golden : public ::testing::TestWithParam<std::size_t> {};

TEST_P(Golden, HasTheTextThatWasRecorded) {
  const auto& [name, programs] = all_golden()[GetParam()];
  const std::string seen = to_text(programs);
  if (const char* folder = std::getenv("TESSERA_RECORD"); folder != nullptr && *folder != '\0') {
    std::ofstream out(fs::path(folder) / (name + ".txt"), std::ios::binary);
    out << seen;
    ASSERT_TRUE(out.flush().good()) << "cannot write to " << folder;
    return;
  }
  const fs::path file = fs::path(TESSERA_GOLDEN) / (name + ".txt");
  ASSERT_TRUE(fs::exists(file)) << file << " is missing; record it with TESSERA_RECORD";
  EXPECT_EQ(first_difference(seen, read(file)), "") << file;
}

TEST_P(Golden, IsReadBackAsItself) {
  const auto& [name, programs] = all_golden()[GetParam()];
  const std::vector<Program> again = parse_programs(to_text(programs));
  ASSERT_EQ(again.size(), programs.size());
  for (std::size_t k = 0; k < programs.size(); ++k) {
    EXPECT_TRUE(again[k] == programs[k]);
    EXPECT_EQ(again[k].hash(), programs[k].hash());
    EXPECT_TRUE(parse_program(to_text(programs[k])) == programs[k]);
  }
}

INSTANTIATE_TEST_SUITE_P(All, Golden, ::testing::Range(std::size_t{0}, all_golden().size()),
                         [](const auto& of) { return all_golden()[of.param].name; });

TEST(GoldenFiles, AreOfPrograms) {
  std::set<std::string> names;
  for (const GoldenPrograms& golden : all_golden()) EXPECT_TRUE(names.insert(golden.name + ".txt").second);
  for (const fs::directory_entry& file : fs::directory_iterator(TESSERA_GOLDEN))
    EXPECT_TRUE(names.contains(file.path().filename())) << file.path() << " is of no program";
}

TEST(GoldenFiles, AreToldApart) {
  EXPECT_EQ(first_difference("a\nb\n", "a\nb\n"), "");
  EXPECT_EQ(first_difference("a\nb\n", "a\nc\n"), "line 2 is\n  b\nand was\n  c");
  EXPECT_EQ(first_difference("a\n", "a\nb\n"), "line 2 is\n  (none)\nand was\n  b");
  EXPECT_EQ(first_difference("a\nb\n", "a\n"), "line 2 is\n  b\nand was\n  (none)");
  EXPECT_NE(first_difference("a", "a\n"), "");
}

}  // namespace
}  // namespace tessera::testing
