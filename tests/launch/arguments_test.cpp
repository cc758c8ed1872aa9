// What is wrong with the command line is said by name, before anything runs.
#include "tests/launch/launcher_tool.h"

namespace tessera::testing {
namespace {

using LaunchArguments = LauncherTool;

TEST_F(LaunchArguments, AreRefusedByName) {
  const auto expect_told = [&](const Arguments& arguments, const std::string& words) {
    const Result result = run(arguments);
    EXPECT_EQ(result.status, 2) << result.err;
    EXPECT_EQ(result.err, "tessera: " + words + "; see tessera launch --help\n");
    EXPECT_EQ(result.out, "");
  };
  const std::string number = " is no number of ranks; give an integer of at least 1";
  expect_told({"-n", "0", "--", "true"}, "-n: 0" + number);
  expect_told({"-n", "x", "--", "true"}, "-n: x" + number);
  expect_told({"--", "true"}, "tessera launch needs -n");
  for (const Arguments& none : {Arguments{"-n", "2"}, {"-n", "2", "--"}})
    expect_told(none, "no command stands behind --, as in: tessera launch -n 2 -- tessera train CONFIG");
  expect_told({"-n", "2", "true"}, "'true' stands where an option is expected; the command stands behind --");
  expect_told({"-n", "2", "--nodes", "2", "--", "true"}, "there is no option '--nodes'");
  expect_told({"-n", "2", "--grace", "-1", "--", "true"},
              "--grace: -1 is no time; give seconds from 0 to 1000000");
  expect_told({"-n", "2", "--heartbeat", "0", "--", "true"},
              "--heartbeat: 0 is no time; give seconds from 0.1 to 1000000");
  for (const char* option : {"--host", "--at", "--start", "--id"})
    expect_told({"-n", "2", option, "1", "--", "true"},
                std::string(option) + ": it is of a launch on several hosts; give --hosts, too");
  expect_told({"-n", "2", "--hosts", "0", "--", "true"},
              "--hosts: 0 is no number of hosts; give an integer of at least 1, the same on all");
  expect_told({"-n", "2", "--hosts", "3", "--host", "3", "--at", "a:1", "--", "true"},
              "--host: there is no host 3 of --hosts 3; they are numbered from 0 to 2");
  expect_told({"-n", "2", "--hosts", "2", "--at", "a:1", "--", "true"},
              "--hosts: 2 hosts need --host, each its number from 0, and --at ADDRESS:PORT, where host 0 is "
              "reached; --host is missing");
  for (const char* place : {"a", "a:", ":1", "a:x", "a:0", "a:65536", "::1:5"})
    expect_told({"-n", "2", "--hosts", "2", "--host", "1", "--at", place, "--", "true"},
                "--at: '" + std::string(place) +
                    "' is no ADDRESS:PORT; give the address of host 0, and a port from 1 to 65535 that is "
                    "free there");
}

TEST_F(LaunchArguments, NameACommandThatCanBeExecuted) {
  const auto expect_refused = [&](const std::string& command, const std::string& words) {
    const Result result = run({"-n", "2", "--", command});
    EXPECT_EQ(result.status, 1);
    EXPECT_EQ(result.err, "tessera: the command '" + command + "' " + words + "\n");
  };
  expect_refused("no_such_command", "is not in PATH; write its path, such as ./no_such_command");
  expect_refused("/no/such/command", "cannot be executed: No such file or directory");
  expect_refused("/etc/passwd", "cannot be executed: Permission denied");
  expect_refused("/etc", "cannot be executed: Is a directory");
  // Only its execution shows that the system cannot run it.
  const std::string words = "what is this\n";
  const std::string script = folder_.write("script", std::as_bytes(std::span(words)));
  std::filesystem::permissions(script, std::filesystem::perms::owner_all);
  expect_refused(script,
                 "cannot be executed: Exec format error; a script begins with a line such as #!/bin/sh");
}

// It is found without being in PATH.
TEST_F(LaunchArguments, MayNameTheToolItself) {
  const Result result = run({"-n", "2", "--", "tessera", "--version"});
  EXPECT_EQ(result.status, 0) << result.err;
  EXPECT_EQ(lines_of(result.out), 2) << result.out;
}

TEST_F(LaunchArguments, AreRefusedInsideALauncher) {
  for (const char* variable : {"RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK"}) {
    ::setenv(variable, "0", 1);
    const Result result = run_shell({"-n", "2"}, "true");
    ::unsetenv(variable);
    EXPECT_EQ(result.status, 1);
    EXPECT_EQ(result.err, "tessera: " + std::string(variable) +
                              " is set: another launcher has started this process as a rank; launch from "
                              "outside, or unset it\n");
  }
}

}  // namespace
}  // namespace tessera::testing
