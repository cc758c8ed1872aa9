// The contract, for ranks that are processes.
#include <cstdlib>

#include "src/comm/mpi/wire.h"
#include "tests/comm/mpi/harness.h"
#include "tests/comm/staged/contract.h"

namespace tessera::contract {
namespace {

// The suite is instantiated before main() starts MPI, so the launcher tells how many there are.
int processes() {
  for (const char* variable : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE"})
    if (const char* value = std::getenv(variable)) return std::atoi(value);
  return 1;
}

std::string name_of_test(const ::testing::TestParamInfo<BackendUnderTest>& test) {
  return test.param.name + std::to_string(test.param.world);
}

INSTANTIATE_TEST_SUITE_P(Mpi, CommunicatorContract,
                         ::testing::Values(staged_shared(processes()), staged_narrow(processes()),
                                           staged_messages(processes()), staged_pairs(processes())),
                         name_of_test);
INSTANTIATE_TEST_SUITE_P(Mpi, CommunicatorErrors,
                         ::testing::Values(staged_shared(processes()), staged_messages(processes()),
                                           staged_pairs(processes())),
                         name_of_test);

TEST(MpiWorlds, RanksOfTwoHostsAreRefusedAsOne) {
  if (testing::mpi_hosts() == 1) GTEST_SKIP() << "all ranks are on one host: see scripts/two_hosts.sh";
  EXPECT_THROW(testing::run_mpi({.ranks_per_host = testing::mpi_processes()}, [](Communicator) {}), Error);
}

// Members of both could take a message of one for the other's.
TEST(MessageTags, OfTwoGroupsThatLiveAreRefusedWhereTheyAreTheSame) {
  testing::run_mpi({}, [](Communicator) {  // which starts MPI
    comm::MpiWire wire(MPI_COMM_SELF, {});
    const comm::GroupKey first{.low = 5, .high = 1}, second{.low = 5, .high = 2};
    const std::uint64_t tags = wire.take_tags(first, "gather", {3, 1, 0});
    EXPECT_EQ(wire.take_tags({.low = 5, .high = 3}, "alone", {2, 1}), tags) << "no two of both";
    EXPECT_EQ(wire.take_tags({.low = 6, .high = 4}, "other", {0, 1}), tags + comm::Transport::kGroupTags);
    try {
      wire.take_tags(second, "reduce", {0, 3});
      ADD_FAILURE() << "the tags of two groups are the same";
    } catch (const EnvironmentError& error) {
      EXPECT_NE(std::string(error.what()).find("'gather' and 'reduce'"), std::string::npos) << error.what();
    }
    wire.give_back_tags(first);
    EXPECT_EQ(wire.take_tags(second, "reduce", {0, 3}), tags);
  });
}

}  // namespace

StagedWorlds staged_worlds() {
  return {.ranks = testing::mpi_processes(),
          .rank = testing::mpi_process(),
          .settings = "MpiOptions",
          .run = [](const StagedSettings& settings, const std::function<void(Communicator)>& rank_main,
                    std::vector<std::string>* messages) {
            testing::run_mpi({.deadline = settings.deadline,
                              .shared_bytes = settings.shared_bytes,
                              .direct = settings.direct,
                              .ranks_per_host = settings.ranks_per_host},
                             rank_main, messages);
          }};
}

}  // namespace tessera::contract
