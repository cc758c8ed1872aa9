// What a folder of checkpoints loses, keeps and refuses: nothing that counts goes before what takes its place
// is there, and what cannot be read is not taken for nothing.
#include <gtest/gtest.h>

#include <cerrno>
#include <cstring>
#include <fstream>

#include "src/checkpoint/folder.h"
#include "src/checkpoint/replace.h"
#include "tests/checkpoint/toy_run.h"

namespace tessera::testing {
namespace {

namespace fs = std::filesystem;
using namespace checkpoint;

void expect_mentions(const std::string& message, const std::vector<std::string>& parts) {
  for (const std::string& part : parts)
    EXPECT_NE(message.find(part), std::string::npos) << "'" << part << "' is not in: " << message;
}

template <class Work>
std::string environment_error(const Work& work) {
  try {
    work();
  } catch (const EnvironmentError& error) {
    return error.what();
  }
  ADD_FAILURE() << "nothing was refused";
  return "";
}

std::string text_of(const fs::path& file) {
  std::ifstream in(file);
  std::string text;
  std::getline(in, text);
  return text;
}

class Folder : public ::testing::Test {
 protected:
  // A folder that passes for a checkpoint by its name and that of its file.
  fs::path make(const std::string& name, const std::string& text = "whole") const {
    fs::create_directories(place_ / name);
    std::ofstream(place_ / name / file_name(0)) << text;
    return place_ / name;
  }
  void name_latest(const std::string& name) const { std::ofstream(place_ / kLatest) << name << "\n"; }

  TemporaryFolder folder_;
  fs::path place_ = folder_.file("run");
};

TEST_F(Folder, AReplacementThatFailsLeavesTheOldOne) {
  const fs::path old = make("step-00000003", "old");
  expect_mentions(environment_error([&] { replace_folder(place_ / "none", old); }),
                  {"run/none", "run/step-00000003", "No such file"});
  EXPECT_EQ(text_of(old / file_name(0)), "old");
  for (const int code : {ENOSPC, EACCES, EIO, EROFS}) {
    static int refusal;
    refusal = code;
    const fs::path fresh = make("step-00000003.tmp", "new");
    const Rename refused = [](int, const char*, int, const char*, unsigned) { return errno = refusal, -1; };
    expect_mentions(environment_error([&] { replace_folder(fresh, old, refused); }),
                    {"run/step-00000003", std::strerror(code)});
    EXPECT_EQ(text_of(old / file_name(0)), "old");
  }
}

TEST_F(Folder, IsReplacedWhereTheFileSystemKnowsPlainRenamesOnly) {
  for (const bool stood : {true, false}) {
    for (const int code : {EINVAL, ENOSYS}) {
      static int refusal;
      refusal = code;
      const Rename lacking = [](int, const char*, int, const char*, unsigned) { return errno = refusal, -1; };
      const fs::path target = stood ? make("step-00000003", "old") : place_ / "step-00000004";
      replace_folder(make("step-00000003.tmp", "new"), target, lacking);
      EXPECT_EQ(text_of(target / file_name(0)), "new");
      if (!stood) fs::remove_all(target);
      EXPECT_EQ(std::distance(fs::directory_iterator(place_), fs::directory_iterator()), 1);
      // Where the second step fails, the first is taken back.
      environment_error([&] { replace_folder(place_ / "none", place_ / "step-00000003", lacking); });
      EXPECT_EQ(text_of(place_ / "step-00000003" / file_name(0)), "new");
    }
  }
}

// What a kill between the two renames, or within a removal, leaves.
TEST_F(Folder, TheNextSaveTakesWhatAKillLeft) {
  make("step-00000003.old.tmp", "aside");
  make("step-00000004.old.tmp", "replaced");
  make("step-00000004");
  make("step-00000001.removed.tmp");
  make("step-00000005.tmp");
  remove_temporaries(place_);
  EXPECT_EQ(text_of(place_ / "step-00000003" / file_name(0)), "aside");
  EXPECT_EQ(text_of(place_ / "step-00000004" / file_name(0)), "whole");
  EXPECT_EQ(std::distance(fs::directory_iterator(place_), fs::directory_iterator()), 2);
}

// A removal that ends half way, here by what it may not remove, leaves no name that looks like a
// checkpoint's.
TEST_F(Folder, PrunesByNameFirst) {
  make("step-00000001"), make("step-00000002");
  // The name that the removal needs is taken by a folder that is not empty, so it fails before any file goes.
  make("step-00000001.removed.tmp");
  environment_error([&] { prune(place_, 1, place_ / "step-00000002"); });
  EXPECT_EQ(text_of(place_ / "step-00000001" / file_name(0)), "whole");
  remove_temporaries(place_);
  prune(place_, 1, place_ / "step-00000002");
  EXPECT_EQ(std::distance(fs::directory_iterator(place_), fs::directory_iterator()), 1);
}

}  // namespace
}  // namespace tessera::testing
