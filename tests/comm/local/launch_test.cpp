// A program that no launcher started: ranks are threads. tests/cli/embed_c_gpt_test.sh has the launchers.
#include <gtest/gtest.h>

#include <atomic>
#include <stdexcept>

#include "tessera/launch.h"

namespace tessera {
namespace {

TEST(Launch, WithoutALauncherRanksAreThreads) {
  EXPECT_EQ(find_launcher(), Launcher::threads);
  for (const int threads : {1, 3}) {
    std::atomic<int> sum{0}, world{0};
    std::string said;
    launch({.threads = threads, .note = [&](const std::string& line) { said += line; }},
           [&](Communicator ranks) {
             sum += ranks.rank();
             world = ranks.world();
             ranks.barrier();
           });
    EXPECT_EQ(sum, threads * (threads - 1) / 2);
    EXPECT_EQ(world, threads);
    EXPECT_EQ(said,
              threads == 1 ? "1 rank on a thread of this process" : "3 ranks on threads of this process");
  }
}

TEST(Launch, WhatARankThrowsIsThrown) {
  const auto run = [](int threads) {
    launch({.threads = threads, .note = [](const std::string&) {}}, [](Communicator ranks) {
      if (ranks.rank() == ranks.world() - 1) throw std::domain_error("no such domain");
      ranks.barrier();
    });
  };
  EXPECT_THROW(run(1), std::domain_error);
  EXPECT_THROW(run(2), std::domain_error);
}

TEST(Launch, LimitsWaits) {
  launch({.threads = 2, .deadline = std::chrono::milliseconds(1234), .note = [](const std::string&) {}},
         [](Communicator ranks) { EXPECT_EQ(ranks.deadline(), std::chrono::milliseconds(1234)); });
}

TEST(Launch, RefusesWhatMeansNothing) {
  EXPECT_THROW(launch({}, {}), UsageError);
  EXPECT_THROW(launch({.threads = 0}, [](const Communicator&) {}), UsageError);
}

}  // namespace
}  // namespace tessera
