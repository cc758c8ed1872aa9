// What ranks would keep on one file system together.
#include <gtest/gtest.h>
#include <sys/statvfs.h>

#include <filesystem>
#include <string>

#include "src/engine/disk_room.h"
#include "tessera/error.h"
#include "tessera/memory_plan.h"

namespace tessera::testing {
namespace {

const std::string kDirectory = std::filesystem::temp_directory_path();

std::int64_t free_bytes() {
  struct statvfs space {};
  EXPECT_EQ(statvfs(kDirectory.c_str(), &space), 0);
  return static_cast<std::int64_t>(space.f_bavail * space.f_frsize);
}

// Of each rank; empty where it was not refused.
std::vector<std::string> refusals(const std::vector<std::int64_t>& bytes, const std::string& directory) {
  std::vector<std::string> messages(bytes.size());
  run_local(static_cast<int>(bytes.size()), {}, [&](Communicator ranks) {
    const auto rank = static_cast<std::size_t>(ranks.rank());
    try {
      check_disk_room(ranks, place_on_host(ranks), directory, bytes[rank]);
    } catch (const EnvironmentError& error) {
      messages[rank] = error.what();
    }
  });
  return messages;
}

TEST(DiskRoom, IsForAllRanksTogether) {
  const std::int64_t most = free_bytes() / 4 * 3;
  EXPECT_EQ(refusals({most}, kDirectory), std::vector<std::string>{""});
  EXPECT_EQ(refusals({1 << 20, 1, 0}, kDirectory), std::vector<std::string>(3));
  const std::vector<std::string> refused = refusals({most, 0, most}, kDirectory);
  EXPECT_EQ(refused[1], "") << "which keeps nothing there";
  EXPECT_EQ(refused[0], refused[2]);
  const std::string together = std::to_string(2 * round_up(most, kBlockBytes));
  EXPECT_EQ(refused[0].find("cannot keep " + together + " bytes ("), 0U) << refused[0];
  for (const std::string& part : {std::string(" of 2 ranks in directory '"), kDirectory,
                                  std::string("are free there"), std::string("are missing")})
    EXPECT_NE(refused[0].find(part), std::string::npos) << refused[0];
}

TEST(DiskRoom, OfWhatCannotBeToldIsLeftToTheFile) {
  EXPECT_EQ(refusals({1, std::int64_t{1} << 60}, kDirectory + "/not/there"), std::vector<std::string>(2));
}

}  // namespace
}  // namespace tessera::testing
