// The contract, for ranks that a launcher started without MPI: as threads with a connection each, and by
// launch.sh as processes.
#include <asio.hpp>
#include <cstdlib>

#include "src/comm/control_wire.h"
#include "tests/comm/contract.h"
#include "tests/comm/processes.h"

namespace tessera::contract {
namespace {

int free_port() {
  asio::io_context io;
  const asio::ip::tcp::endpoint any(asio::ip::address_v4::loopback(), 0);
  return asio::ip::tcp::acceptor(io, any).local_endpoint().port();
}

// What run_local() does, for a world of control connections.
void run_control(int world, const RunOptions& options, const std::function<void(Communicator)>& rank_main,
                 std::vector<std::string>* messages) {
  const int port = free_port();
  std::vector<std::string> texts(static_cast<std::size_t>(world));
  std::vector<std::exception_ptr> causes(texts.size());
  std::vector<std::thread> threads;
  std::vector<char> consequence(texts.size(), 0);
  for (int rank = 0; rank < world; ++rank)
    threads.emplace_back([&, rank] {
      const auto own = static_cast<std::size_t>(rank);
      const auto end = [&](const std::exception& error) {
        causes[own] = std::current_exception();
        texts[own] = error.what();
      };
      try {
        Communicator ranks =
            make_control_world({.rank = rank, .world = world, .port = port, .deadline = options.deadline});
        try {
          rank_main(ranks);
        } catch (const std::exception& error) {
          ranks.fail(error.what());
          throw;
        }
      } catch (const CommunicationError& error) {
        consequence[own] = 1;
        end(error);
      } catch (const std::exception& error) {
        end(error);
      }
    });
  for (std::thread& thread : threads) thread.join();
  if (messages != nullptr) *messages = texts;
  for (const char wanted : {0, 1})
    for (std::size_t rank = 0; rank < causes.size(); ++rank)
      if (causes[rank] && consequence[rank] == wanted) std::rethrow_exception(causes[rank]);
}

// As threads, unless processes were started: then as these.
std::vector<BackendUnderTest> worlds(const std::vector<int>& of_threads) {
  if (launched_by_variables())
    return {{.name = "processes", .world = control_options_from_environment().world, .run = run_processes}};
  std::vector<BackendUnderTest> made;
  for (const int world : of_threads) made.push_back({.name = "control", .world = world, .run = run_control});
  return made;
}

std::string name_of_test(const testing::TestParamInfo<BackendUnderTest>& test) {
  return test.param.name + std::to_string(test.param.world);
}

INSTANTIATE_TEST_SUITE_P(Control, CommunicatorContract, testing::ValuesIn(worlds({1, 2, 3, 4})),
                         name_of_test);
INSTANTIATE_TEST_SUITE_P(Control, CommunicatorErrors, testing::ValuesIn(worlds({2, 3})), name_of_test);

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
    // A process that says hello and dies.
    asio::io_context io;
    asio::ip::tcp::socket socket(io);
    asio::error_code error = asio::error::not_connected;
    while (error)
      socket.connect({asio::ip::address_v4::loopback(), static_cast<unsigned short>(port)}, error);
    comm::FrameHeader hello;
    hello.member = 1;
    asio::write(socket, asio::buffer(&hello, sizeof hello));
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

TEST(ControlOptions, AreReadFromTheEnvironment) {
  const auto set = [](const char* name, const char* value) {
    value == nullptr ? unsetenv(name) : setenv(name, value, 1);
  };
  for (const char* name :
       {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_USE_AGENT_STORE"})
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
}

}  // namespace
}  // namespace tessera::contract
