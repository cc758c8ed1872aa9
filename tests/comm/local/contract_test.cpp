// The contract, for ranks that are threads.
#include "tests/comm/contract.h"

namespace tessera::contract {
namespace {

BackendUnderTest local(int world) {
  return {.name = "local",
          .world = world,
          .run = [](int ranks, const RunOptions& options, const std::function<void(Communicator)>& rank_main,
                    std::vector<std::string>* messages) {
            run_local(ranks, {.deadline = options.deadline}, rank_main, messages);
          }};
}

std::string name_of_test(const testing::TestParamInfo<BackendUnderTest>& test) {
  return test.param.name + std::to_string(test.param.world);
}

INSTANTIATE_TEST_SUITE_P(Local, CommunicatorContract,
                         testing::Values(local(1), local(2), local(3), local(4), local(8)), name_of_test);
INSTANTIATE_TEST_SUITE_P(Local, CommunicatorErrors, testing::Values(local(2), local(3), local(8)),
                         name_of_test);

}  // namespace
}  // namespace tessera::contract
