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

TEST_F(Folder, AReplacementReturnsWhatItReplaced) {
  EXPECT_TRUE(replace_folder(make("step-00000003.tmp", "old"), place_ / "step-00000003").empty());
  const fs::path replaced = replace_folder(make("step-00000003.tmp", "new"), place_ / "step-00000003");
  EXPECT_EQ(text_of(place_ / "step-00000003" / file_name(0)), "new");
  EXPECT_EQ(replaced, place_ / "step-00000003.tmp");
  EXPECT_EQ(text_of(replaced / file_name(0)), "old");
}

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
      const fs::path replaced = replace_folder(make("step-00000003.tmp", "new"), target, lacking);
      EXPECT_EQ(text_of(target / file_name(0)), "new");
      EXPECT_EQ(replaced.empty(), !stood);
      if (stood) {
        EXPECT_EQ(text_of(replaced / file_name(0)), "old");  // until the renames are on the disk
        EXPECT_EQ(remove_temporary(replaced), "");
      }
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
  expect_mentions(prune(place_, 1, place_ / "step-00000002", {}),
                  {"cannot remove", "step-00000001", "not empty"});
  EXPECT_EQ(text_of(place_ / "step-00000001" / file_name(0)), "whole");
  remove_temporaries(place_);
  EXPECT_EQ(prune(place_, 1, place_ / "step-00000002", {}), "");
  EXPECT_EQ(std::distance(fs::directory_iterator(place_), fs::directory_iterator()), 1);
}

// By their steps, whatever a copy made of the files' times; and a run that went back keeps its own: what it
// left behind is older, though its steps are higher.
TEST_F(Folder, PrunesTheOldest) {
  const auto left_of = [&](int keep, const char* saved, const char* before = "") {
    for (const char* step :
         {"step-00000030", "step-00000005", "step-00000020", "step-00000006", "step-00000010"})
      make(step);
    prune(place_, keep, place_ / saved, place_ / before);
    std::vector<std::string> left;
    for (const fs::path& path : checkpoints_in(place_)) left.push_back(path.filename().string());
    fs::remove_all(place_);
    return left;
  };
  using Names = std::vector<std::string>;
  EXPECT_EQ(left_of(2, "step-00000030"), (Names{"step-00000020", "step-00000030"}));
  EXPECT_EQ(left_of(2, "step-00000006"), (Names{"step-00000005", "step-00000006"}));
  EXPECT_EQ(left_of(3, "step-00000006"), (Names{"step-00000005", "step-00000006", "step-00000030"}));
  EXPECT_EQ(left_of(1, "step-00000005"), (Names{"step-00000005"}));
  // A run that went on from step 6 and saves 30 does not come to 10 and 20.
  EXPECT_EQ(left_of(2, "step-00000030", "step-00000006"), (Names{"step-00000006", "step-00000030"}));
  EXPECT_EQ(left_of(3, "step-00000030", "step-00000006"),
            (Names{"step-00000005", "step-00000006", "step-00000030"}));
  EXPECT_EQ(left_of(2, "step-00000030", "step-00000007"), (Names{"step-00000020", "step-00000030"}));
  EXPECT_EQ(left_of(2, "step-00000006", "step-00000030"), (Names{"step-00000005", "step-00000006"}));
}

TEST_F(Folder, WhatLatestNamesIsUsedOrRefused) {
  make("step-00000003"), make("step-00000006");
  name_latest("step-00000006");
  EXPECT_EQ(latest_checkpoint(place_), place_ / "step-00000006");
  fs::remove(place_ / "step-00000006" / file_name(0));
  const std::string damaged = environment_error([&] { latest_checkpoint(place_); });
  expect_mentions(
      damaged, {"run/step-00000006", "rank-00000.tessera", "missing", "another step's folder", "run/latest"});
  EXPECT_EQ(environment_error([&] { inspect_checkpoint(place_); }), damaged);
  EXPECT_EQ(latest_checkpoint(place_ / "step-00000003"), place_ / "step-00000003");
  fs::remove(place_ / "step-00000006");
  expect_mentions(environment_error([&] { latest_checkpoint(place_); }),
                  {"run/step-00000006", "is not there", "run/latest"});
  make("step-00000006.old.tmp");
  expect_mentions(environment_error([&] { latest_checkpoint(place_); }),
                  {"step-00000006.old.tmp", "renamed"});
  for (const char* name : {"", "step-", "../step-00000003", "step-00000003x"}) {
    name_latest(name);
    expect_mentions(environment_error([&] { latest_checkpoint(place_); }), {"run/latest", "does not name"});
  }
  fs::remove(place_ / kLatest);
  EXPECT_EQ(latest_checkpoint(place_), place_ / "step-00000003");
}

TEST_F(Folder, WhatCannotBeReadIsNotTakenForNothing) {
  const auto refused = [this](const std::string& name, const std::vector<std::string>& parts) {
    expect_mentions(environment_error([&] { latest_checkpoint(place_); }), parts);
    fs::remove_all(place_ / name);
    EXPECT_FALSE(latest_checkpoint(place_));
  };
  EXPECT_FALSE(latest_checkpoint(place_));
  fs::create_directories(place_);
  std::ofstream(place_ / "step-00000003") << "no folder";
  refused("step-00000003", {"step-00000003", "Not a directory"});
  fs::create_symlink("step-00000003", place_ / "step-00000003");
  refused("step-00000003", {"step-00000003", "symbolic links"});
  fs::create_symlink("elsewhere", place_ / "step-00000003");
  refused("step-00000003", {"step-00000003", "a link to what is not there"});
  fs::create_directories(place_ / "step-00000003" / file_name(0));
  refused("step-00000003", {"step-00000003/rank-00000.tessera", "not a regular file"});
  fs::create_symlink("latest", place_ / kLatest);
  refused(kLatest, {"run/latest", "symbolic links"});
  fs::create_directories(place_ / kLatest);
  refused(kLatest, {"run/latest", "Is a directory"});
}

TEST_F(Folder, AFolderThatCannotBeReadIsNotTakenForAnEmptyOne) {
  std::ofstream(folder_.file("file")) << "no folder";
  expect_mentions(environment_error([&] { latest_checkpoint(folder_.file("file")); }),
                  {"/file", "Not a directory"});
  fs::create_symlink("nowhere", folder_.file("link"));
  expect_mentions(environment_error([&] { latest_checkpoint(folder_.file("link")); }),
                  {"/link", "a link to what is not there"});
  expect_mentions(environment_error([&] { latest_checkpoint(folder_.file(std::string(300, 'x'))); }),
                  {"xxx", "File name too long"});
}

}  // namespace
}  // namespace tessera::testing
