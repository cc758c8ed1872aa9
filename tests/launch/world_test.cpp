// What ranks are given: their place, and a port where they meet.
#include <set>

#include "tessera/communicator.h"
#include "tests/launch/launcher_tool.h"

namespace tessera::testing {
namespace {

using LaunchedWorld = LauncherTool;

TEST_F(LaunchedWorld, KnowsItsPlace) {
  const Result result =
      run_shell({"-n", "3"},
                "echo $RANK/$WORLD_SIZE $LOCAL_RANK/$LOCAL_WORLD_SIZE $GROUP_RANK/$GROUP_WORLD_SIZE "
                "$MASTER_ADDR ${MASTER_PORT:+port} ${TESSERA_LAUNCH:+id}");
  EXPECT_EQ(result.status, 0);
  EXPECT_EQ(result.err, "");
  std::istringstream out(result.out);
  std::set<std::string> lines;
  for (std::string line; std::getline(out, line);) lines.insert(line);
  EXPECT_EQ(lines, (std::set<std::string>{"0/3 0/3 0/1 127.0.0.1 port id", "1/3 1/3 0/1 127.0.0.1 port id",
                                          "2/3 2/3 0/1 127.0.0.1 port id"}));
}

TEST_F(LaunchedWorld, MeetsByLaunch) {
  if (!control_available()) GTEST_SKIP() << "a build without asio";
  const Result result = run({"-n", "3", "--", TESSERA_RANK_PROGRAM, "sum"});
  EXPECT_EQ(result.status, 0) << result.err;
  EXPECT_EQ(result.out, "sum 6 of 3\n");
}

// A process of another launch is told so at the port.
TEST_F(LaunchedWorld, RefusesStrangers) {
  if (!control_available()) GTEST_SKIP() << "a build without asio";
  const Result result = run_shell({"-n", "2", "--grace", "0.2"},
                                  "if [ $RANK = 1 ]; then export TESSERA_LAUNCH=another; fi; exec " +
                                      std::string(TESSERA_RANK_PROGRAM) + " sum");
  EXPECT_EQ(result.status, 1);
  EXPECT_THAT(result.err, HasSubstr("TESSERA_LAUNCH=another"));
}

TEST_F(LaunchedWorld, HasTheStandardInputOnRankZero) {
  const Result result = finish_process(
      start_process({"/bin/sh", "-c",
                     "echo words | " TESSERA_TOOL " launch -n 2 -- /bin/sh -c 'echo \"$RANK $(cat)\"'"},
                    printed()),
      printed());
  EXPECT_THAT(result.out, HasSubstr("0 words\n"));
  EXPECT_THAT(result.out, HasSubstr("1 \n"));
}

}  // namespace
}  // namespace tessera::testing
