// The contract, for ranks that share memory without MPI: as threads, and by launch.sh as processes.
#include <functional>
#include <optional>
#include <thread>

#include "src/comm/backend.h"
#include "src/comm/process/wire.h"
#include "tests/comm/control/threads.h"
#include "tests/comm/processes.h"
#include "tests/comm/staged/contract.h"

namespace tessera::contract {
namespace {

BackendUnderTest threads_of(const std::string& name, int world, const ProcessOptions& options) {
  const MakeWorld make = [options](const ControlOptions& control) {
    return make_process_world(make_control_world(control), options);
  };
  return {.name = name, .world = world, .run = std::bind_front(run_in_threads, make)};
}

// Ranks are threads, unless processes were started: then these.
std::vector<BackendUnderTest> worlds(const std::vector<int>& of_threads) {
  std::vector<BackendUnderTest> made;
  if (launched_by_variables()) {
    const int world = staged_worlds().ranks;
    made = {staged_shared(world), staged_narrow(world)};
    if (process_between_hosts()) made.insert(made.end(), {staged_messages(world), staged_pairs(world)});
    return made;
  }
  for (const int world : of_threads) {
    made.push_back(threads_of("shared", world, {}));
    if (process_between_hosts() && world > 1)
      made.push_back(threads_of("pairs", world, {.ranks_per_host = 2}));
  }
  return made;
}

std::string name_of_test(const ::testing::TestParamInfo<BackendUnderTest>& test) {
  return test.param.name + std::to_string(test.param.world);
}

INSTANTIATE_TEST_SUITE_P(Process, CommunicatorContract, ::testing::ValuesIn(worlds({1, 2, 3})), name_of_test);
INSTANTIATE_TEST_SUITE_P(Process, CommunicatorErrors, ::testing::ValuesIn(worlds({2, 3})), name_of_test);

// Of two ranks of a host that fail, the second may end before the first has told other hosts why.
TEST(HostWire, WhoEndsInAWorldThatFailedIsNotHeardOfBeforeTheFailure) {
  const auto rank_main = [](Communicator world) {
    if (world.rank() == 0) {
      std::this_thread::sleep_for(milliseconds(50));
      return world.fail("the disk is full");
    }
    comm::HostWire(world).tell_ended(true);
    const std::optional<comm::Failure> failure = world.backend()->failure();
    ASSERT_TRUE(failure.has_value());
    EXPECT_EQ(failure->message, "the disk is full");
  };
  run_in_threads(make_control_world, 2, {}, rank_main, nullptr);
}

}  // namespace

StagedWorlds staged_worlds() {
  if (!launched_by_variables()) return {};
  const ControlOptions control = control_options_from_environment();
  return {.ranks = control.world,
          .rank = control.rank,
          .settings = "ProcessOptions",
          .run = [](const StagedSettings& settings, const std::function<void(Communicator)>& rank_main,
                    std::vector<std::string>* messages) {
            run_processes_as(
                [&](const Communicator& host) {
                  return make_process_world(host, {.address = control_options_from_environment().address,
                                                   .shared_bytes = settings.shared_bytes,
                                                   .direct = settings.direct,
                                                   .ranks_per_host = settings.ranks_per_host});
                },
                {.deadline = settings.deadline}, rank_main, messages);
          }};
}

}  // namespace tessera::contract
