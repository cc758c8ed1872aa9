// The contract, for ranks that a launcher started without MPI: as threads with a connection each, and by
// launch.sh as processes.
#include <asio.hpp>
#include <cstdlib>
#include <functional>
#include <numeric>
#include <thread>

#include "src/comm/control/backend.h"
#include "tests/comm/contract.h"
#include "tests/comm/control/ends.h"
#include "tests/comm/control/threads.h"
#include "tests/comm/processes.h"

namespace tessera::contract {
namespace {

// As threads, unless processes were started: then as these.
std::vector<BackendUnderTest> worlds(const std::vector<int>& of_threads) {
  if (launched_by_variables())
    return {{.name = "processes", .world = control_options_from_environment().world, .run = run_processes}};
  std::vector<BackendUnderTest> made;
  for (const int world : of_threads)
    made.push_back(
        {.name = "control", .world = world, .run = std::bind_front(run_in_threads, make_control_world)});
  return made;
}

// Of whose calls a control connection takes a few bytes at once.
std::vector<BackendUnderTest> worlds_in_pieces() {
  if (launched_by_variables()) return {};
  const MakeWorld make = [](const ControlOptions& options) {
    std::vector<int> ranks(static_cast<std::size_t>(options.world));
    std::iota(ranks.begin(), ranks.end(), 0);
    return Communicator(std::make_shared<comm::ControlBackend>(
        std::make_shared<comm::ControlWorld>(options, 1000), 0, ranks, "world"));
  };
  return {{.name = "pieces", .world = 3, .run = std::bind_front(run_in_threads, make)}};
}

std::string name_of_test(const testing::TestParamInfo<BackendUnderTest>& test) {
  return test.param.name + std::to_string(test.param.world);
}

INSTANTIATE_TEST_SUITE_P(Control, CommunicatorContract, testing::ValuesIn(worlds({1, 2, 3, 4})),
                         name_of_test);
INSTANTIATE_TEST_SUITE_P(Control, CommunicatorErrors, testing::ValuesIn(worlds({2, 3})), name_of_test);
INSTANTIATE_TEST_SUITE_P(InPieces, CommunicatorContract, testing::ValuesIn(worlds_in_pieces()), name_of_test);
INSTANTIATE_TEST_SUITE_P(InPieces, CommunicatorErrors, testing::ValuesIn(worlds_in_pieces()), name_of_test);

TEST(ControlWorld, SaysWhatCannotBeReachedOrListenedOn) {
  const int port = free_port();
  EXPECT_THROW(make_control_world({.rank = 2, .world = 2, .port = port}), UsageError);
  EXPECT_THROW(make_control_world({.port = 0}), UsageError);
  try {
    make_control_world({.rank = 1, .world = 2, .port = port, .deadline = milliseconds(100)});
    FAIL() << "nobody listens there";
  } catch (const CommunicationError& error) {
    EXPECT_TRUE(
        contains(error.what(), "rank 1: no connection to rank 0 at 127.0.0.1:" + std::to_string(port)))
        << error.what();
    EXPECT_TRUE(contains(error.what(), "MASTER_PORT")) << error.what();
  }
  asio::io_context io;
  const asio::ip::tcp::acceptor taken(io, {asio::ip::address_v4::any(), 0});
  const int used = taken.local_endpoint().port();
  try {
    make_control_world({.port = used});
    FAIL() << "the port is taken";
  } catch (const EnvironmentError& error) {
    EXPECT_TRUE(contains(error.what(), "port " + std::to_string(used))) << error.what();
  }
}

TEST(ControlWorld, ARankWhoseConnectionEndsHasFailed) {
  const int port = free_port();
  std::string text;
  std::thread server([&] {
    Communicator ranks = make_control_world({.world = 2, .port = port, .deadline = milliseconds(15'000)});
    try {
      ranks.barrier({.unit = "block.0"});
    } catch (const CommunicationError& error) {
      text = error.what();
    }
  });
  {
    RawRank one(port);  // a process that dies
    one.join(1, 2);
    std::this_thread::sleep_for(milliseconds(30));
  }
  server.join();
  EXPECT_TRUE(
      contains(text, "rank 0: barrier #1 of unit 'block.0' on 'world': rank 1 failed: its connection ended"))
      << text;
}

TEST(ControlWorld, ARankThatComesAfterTheFailureHearsOfIt) {
  const int port = free_port();
  std::thread first([&] {
    Communicator ranks = make_control_world({.world = 2, .port = port, .deadline = milliseconds(15'000)});
    ranks.fail("its data is gone");
  });
  std::this_thread::sleep_for(milliseconds(200));
  std::string text;
  try {
    make_control_world({.rank = 1, .world = 2, .port = port, .deadline = milliseconds(15'000)}).barrier();
  } catch (const CommunicationError& error) {
    text = error.what();
  }
  first.join();
  EXPECT_TRUE(contains(text, "rank 0 failed: its data is gone")) << text;
}

// Takes the rank, and reads nothing more.
const FakeRankZero::Serve kDeaf = FakeRankZero::welcome;

using Clock = std::chrono::steady_clock;

TEST(ControlWorld, ACallThatRankZeroDoesNotTakeEndsAtItsDeadline) {
  const FakeRankZero deaf(kDeaf);
  std::vector<std::string> texts;
  const Clock::time_point begin = Clock::now();
  {
    Communicator ranks = deaf.rank_one(milliseconds(200));
    std::vector<char> many(64 << 20);
    const std::vector<std::function<void()>> calls = {
        [&] { ranks.broadcast(many.data(), std::ssize(many), 1, {.unit = "block.0"}); },
        [&] { ranks.barrier(); }};
    for (const auto& call : calls) try {
        call();
      } catch (const CommunicationError& error) {
        EXPECT_EQ(error.culprit(), 0);
        texts.emplace_back(error.what());
      }
    ranks.fail("it gives up");
  }
  EXPECT_LT(Clock::now() - begin, milliseconds(3000));
  const std::string what =
      "broadcast #1 of unit 'block.0' on 'world': rank 0 does not take what is sent within 200 ms";
  EXPECT_EQ(texts,
            (std::vector<std::string>{"rank 1: " + what,
                                      "rank 1: barrier #2 on 'world': this rank failed before: " + what}));
}

TEST(ControlWorld, AFailureDoesNotWaitBehindACallThatRankZeroDoesNotTake) {
  const FakeRankZero deaf(kDeaf);
  constexpr milliseconds kDeadline(1500);
  Communicator ranks = deaf.rank_one(kDeadline);
  std::thread calls([&] {
    std::vector<char> many(64 << 20);
    EXPECT_THROW(ranks.broadcast(many.data(), std::ssize(many), 1), CommunicationError);
  });
  std::this_thread::sleep_for(milliseconds(100));
  const Clock::time_point begin = Clock::now();
  ranks.fail("it gives up");
  EXPECT_LT(Clock::now() - begin, kDeadline - milliseconds(300));
  calls.join();
}

TEST(ControlWorld, AnAttemptToConnectEndsAtTheDeadline) {
  asio::io_context io;
  asio::ip::tcp::acceptor full(io, asio::ip::tcp::v4());
  full.bind({asio::ip::address_v4::loopback(), 0});
  full.listen(0);
  // The system then drops what would open another connection, as a host does that is gone.
  std::vector<asio::ip::tcp::socket> others;
  for (int i = 0; i < 4; ++i) {
    others.emplace_back(io);
    others.back().async_connect(full.local_endpoint(), [](const asio::error_code&) {});
  }
  std::this_thread::sleep_for(milliseconds(20));
  const Clock::time_point begin = Clock::now();
  try {
    make_control_world(
        {.rank = 1, .world = 2, .port = full.local_endpoint().port(), .deadline = milliseconds(200)});
    FAIL() << "it has no room";
  } catch (const CommunicationError& error) {
    EXPECT_TRUE(contains(error.what(), "within 200 ms (Connection timed out); MASTER_ADDR")) << error.what();
  }
  EXPECT_LT(Clock::now() - begin, milliseconds(2000));
}

std::string usage_error_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const UsageError& error) {
    return error.what();
  }
  return "none";
}

TEST(ControlWorld, RefusesWhatAFrameDoesNotHoldBeforeItIsSent) {
  const auto world = std::make_shared<comm::ControlWorld>(ControlOptions{.port = free_port()});
  const auto bytes = static_cast<std::size_t>(comm::kMostFrameBytes) + 1;
  const std::unique_ptr<char[]> untouched(new char[bytes]);  // so that it takes no memory
  EXPECT_EQ(
      usage_error_of([&] {
        world->exchange({}, {untouched.get(), bytes}, "broadcast #1 on 'world'");
      }),
      "broadcast #1 on 'world': 1073741825 bytes at once; a control connection takes at most 1073741824");
  Communicator(std::make_shared<comm::ControlBackend>(world, 0, std::vector<int>{0}, "world")).barrier();
  // A world of one has no such group, but that is not why.
  std::vector<int> ranks(40'000);
  std::iota(ranks.begin(), ranks.end(), 0);
  Communicator many(std::make_shared<comm::ControlBackend>(world, 0, ranks, "many"));
  std::vector<char> input(ranks.size()), output(ranks.size());
  EXPECT_EQ(usage_error_of([&] { many.all_to_all(input.data(), output.data(), 1); }),
            "all_to_all #1 on 'many': 40000 ranks bring 1600000000 bytes at once; a control connection takes "
            "at most 1073741824");
}

TEST(ControlOptions, AreReadFromTheEnvironment) {
  const auto set = [](const char* name, const char* value) {
    value == nullptr ? unsetenv(name) : setenv(name, value, 1);
  };
  for (const char* name : {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_USE_AGENT_STORE",
                           "TORCHELASTIC_RUN_ID", "SLURM_JOB_ID", "SLURM_HET_SIZE"})
    set(name, nullptr);
  EXPECT_FALSE(launched_by_variables());
  const auto error = [] {
    try {
      control_options_from_environment();
      return std::string("none");
    } catch (const UsageError& found) {
      return std::string(found.what());
    }
  };
  EXPECT_EQ(error(), "WORLD_SIZE is not set; a launcher sets it to a number from 1 to 1048576");
  set("WORLD_SIZE", "4");
  EXPECT_EQ(error(), "RANK is not set; a launcher sets it to a number from 0 to 3");
  set("RANK", "4");
  EXPECT_EQ(error(), "RANK is \"4\"; a launcher sets it to a number from 0 to 3");
  set("RANK", "3");
  EXPECT_TRUE(launched_by_variables());
  EXPECT_TRUE(contains(error(), "MASTER_ADDR is not set"));
  set("MASTER_ADDR", "node7");
  set("MASTER_PORT", "29x");
  EXPECT_TRUE(contains(error(), "MASTER_PORT is \"29x\""));
  set("MASTER_PORT", "29400");
  const ControlOptions options = control_options_from_environment();
  EXPECT_EQ(options.rank, 3);
  EXPECT_EQ(options.world, 4);
  EXPECT_EQ(options.address, "node7");
  EXPECT_EQ(options.port, 29400);
  set("TORCHELASTIC_USE_AGENT_STORE", "True");
  EXPECT_EQ(control_options_from_environment().port, 29401);
  EXPECT_EQ(options.launch, "");
  set("SLURM_JOB_ID", "7");
  EXPECT_EQ(control_options_from_environment().launch, "SLURM_JOB_ID=7");
  set("SLURM_HET_SIZE", "2");
  EXPECT_EQ(control_options_from_environment().launch, "") << "each component has another";
  set("TORCHELASTIC_RUN_ID", "seven");
  EXPECT_EQ(control_options_from_environment().launch, "TORCHELASTIC_RUN_ID=seven");
}

TEST(ControlOptions, AreNoneOfTwoLaunchersThatDiffer) {
  setenv("RANK", "0", 1);
  setenv("WORLD_SIZE", "2", 1);
  for (const char* variable : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE"}) {
    setenv(variable, "2", 1);
    EXPECT_EQ(usage_error_of(check_launchers), "none");
    setenv(variable, "4", 1);
    EXPECT_EQ(
        usage_error_of(check_launchers),
        std::string(variable) +
            " is \"4\", and WORLD_SIZE is \"2\": of two launchers, one within the other, unset the outer "
            "one's, " +
            variable + " or RANK and WORLD_SIZE");
    setenv("WORLD_SIZE", "1", 1);
    EXPECT_EQ(usage_error_of(check_launchers), "none") << "these say that it is alone";
    setenv("WORLD_SIZE", "2", 1);
    unsetenv(variable);
  }
  for (const char* variable : {"RANK", "WORLD_SIZE"}) unsetenv(variable);
}

}  // namespace
}  // namespace tessera::contract
