// The page of each room, README.md: there is one, it is short, and the files that it names are there.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <regex>
#include <string>
#include <vector>

namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMostLines = 20;
const fs::path kRoot = TESSERA_SOURCE_DIR;

// These, and every folder below src, src/comm and kernels.
std::vector<std::string> rooms() {
  std::vector<std::string> rooms = {"include/tessera", "src/comm", "kernels", "optim", "tests",
                                    "benchmarks",      "examples", "scripts", "fuzz"};
  for (const char* parent : {"src", "src/comm", "kernels"})
    for (const fs::directory_entry& entry : fs::directory_iterator(kRoot / parent))
      if (entry.is_directory()) rooms.push_back(entry.path().lexically_relative(kRoot).generic_string());
  std::ranges::sort(rooms);
  rooms.erase(std::unique(rooms.begin(), rooms.end()), rooms.end());
  return rooms;
}

std::string text_of(const fs::path& file) {
  std::ifstream in(file);
  return {std::istreambuf_iterator<char>(in), {}};
}

// What stands between `backquotes` and looks like a file, by its ending, or like a folder, by a slash at its
// end.
std::vector<std::string> named_in(const std::string& text) {
  static const std::regex kNamed(
      R"(`([A-Za-z0-9][A-Za-z0-9_./-]*(\.(h|cpp|cu|cuh|c|py|sh|cmake|md|txt|html|toml)|/))`)");
  std::vector<std::string> names;
  for (std::sregex_iterator match(text.begin(), text.end(), kNamed), end; match != end; ++match)
    names.push_back((*match)[1]);
  return names;
}

// A room names its own files as they are, and others by their path from the root or as an include does.
bool is_there(const std::string& room, const std::string& name) {
  return fs::exists(kRoot / room / name) || fs::exists(kRoot / name) || fs::exists(kRoot / "include" / name);
}

TEST(Rooms, AreFound) {
  const std::vector<std::string> all = rooms();
  for (const char* room : {"src/program", "src/comm", "src/comm/mpi", "kernels/cuda", "scripts"})
    EXPECT_TRUE(std::ranges::count(all, room) == 1) << room;
}

TEST(Rooms, HaveAPageThatIsShort) {
  for (const std::string& room : rooms()) {
    const fs::path page = kRoot / room / "README.md";
    ASSERT_TRUE(fs::exists(page)) << room
                                  << " has no README.md: say what lives there, what does not, where to "
                                  << "start reading, and how to add the most usual thing";
    const std::string text = text_of(page);
    const auto lines = static_cast<std::size_t>(std::ranges::count(text, '\n'));
    EXPECT_GE(lines, 5u) << page << " says too little";
    EXPECT_LE(lines, kMostLines) << page << " has more lines than a room's page may have";
    EXPECT_TRUE(text.starts_with("# ")) << page << " begins with no heading: '" << text.substr(0, 20) << "'";
  }
}

TEST(Rooms, HavePagesThatNameFilesThatAreThere) {
  for (const std::string& room : rooms()) {
    const std::vector<std::string> names = named_in(text_of(kRoot / room / "README.md"));
    EXPECT_FALSE(names.empty()) << room << "/README.md names no file to start with";
    for (const std::string& name : names)
      EXPECT_TRUE(is_there(room, name)) << room << "/README.md names '" << name << "', which is not there";
  }
}

// The rule itself: it must be able to fail.
TEST(Rooms, TellFilesFromOtherWords) {
  EXPECT_EQ(named_in("`a.h` b.h `c()` `d` `e/` `tessera/f.h`, `g/h.cpp`: `*.h` `_k.h` `i.h"),
            (std::vector<std::string>{"a.h", "e/", "tessera/f.h", "g/h.cpp"}));
  EXPECT_TRUE(is_there("src/comm", "local/"));
  EXPECT_TRUE(is_there("src/comm", "tessera/program.h"));
  EXPECT_TRUE(is_there("src/comm", "src/comm/call.h"));
  EXPECT_FALSE(is_there("src/comm", "group.h"));
}

}  // namespace
