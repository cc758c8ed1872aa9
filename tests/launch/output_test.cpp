// --output: a file for each rank; what rank 0 writes is shown, too.
#include "tests/launch/launcher_tool.h"

namespace tessera::testing {
namespace {

using LaunchOutput = LauncherTool;

TEST_F(LaunchOutput, GoesToAFileForEachRank) {
  const std::string logs = folder_.file("logs/of/this");
  const Result result =
      run_shell({"-n", "3", "--output", logs}, "echo out $RANK; sleep 0.05; echo err $RANK >&2");
  EXPECT_EQ(result.status, 0) << result.err;
  EXPECT_EQ(result.out, "out 0\n");
  EXPECT_EQ(result.err, "err 0\n");
  for (const char* rank : {"0", "1", "2"})
    EXPECT_EQ(read(logs + "/rank-" + rank + ".log"), "out " + std::string(rank) + "\nerr " + rank + "\n");
}

// All of it, also of a rank that ends as soon as it has written.
TEST_F(LaunchOutput, IsWhole) {
  const std::string logs = folder_.file("logs");
  const Result result = run_shell({"-n", "1", "--output", logs}, "seq 1 60000; exit 3");
  EXPECT_EQ(result.status, 3);
  EXPECT_EQ(lines_of(result.out), 60'000);
  EXPECT_EQ(read(logs + "/rank-0.log"), result.out);
}

TEST_F(LaunchOutput, IsRefusedWhereItCannotBeWritten) {
  const Result result = run_shell({"-n", "1", "--output", "/proc/none"}, "echo ran");
  EXPECT_NE(result.status, 0);
  EXPECT_EQ(result.out, "");
  EXPECT_THAT(result.err, HasSubstr("--output: "));
  EXPECT_THAT(result.err, HasSubstr("/proc/none"));
}

}  // namespace
}  // namespace tessera::testing
