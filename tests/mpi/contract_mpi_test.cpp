// The contract, for ranks that are processes.
#include "tests/comm/contract_tests.h"
#include "tests/mpi/harness.h"

namespace tessera::contract {
namespace {

// The suite is instantiated before main() starts MPI, so the launcher tells how many there are.
int processes() {
  for (const char* variable : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE"})
    if (const char* value = std::getenv(variable)) return std::atoi(value);
  return 1;
}

BackendUnderTest processes_of(const std::string& name, MpiOptions mpi) {
  return {
      .name = name,
      .world = processes(),
      .run = [mpi](int world, const RunOptions& options, const std::function<void(Communicator)>& rank_main,
                   std::vector<std::string>* messages) {
        ASSERT_EQ(world, testing::mpi_processes());
        MpiOptions with_deadline = mpi;
        with_deadline.deadline = options.deadline;
        testing::run_mpi(with_deadline, rank_main, messages);
      }};
}

const BackendUnderTest kShared = processes_of("shared", {});
// With little room, calls go in many parts.
const BackendUnderTest kNarrow = processes_of("narrow", {.shared_bytes = 512 * 1024});
// As if each process were on a host of its own, or each two.
const BackendUnderTest kMessages = processes_of("messages", {.ranks_per_host = 1});
const BackendUnderTest kPairs = processes_of("pairs", {.ranks_per_host = 2});

std::string name_of_test(const ::testing::TestParamInfo<BackendUnderTest>& test) {
  return test.param.name + std::to_string(test.param.world);
}

INSTANTIATE_TEST_SUITE_P(Mpi, CommunicatorContract, ::testing::Values(kShared, kNarrow, kMessages, kPairs),
                         name_of_test);
INSTANTIATE_TEST_SUITE_P(Mpi, CommunicatorErrors, ::testing::Values(kShared, kMessages, kPairs),
                         name_of_test);

// More than the staging buffers hold at a time, and not a multiple of them.
TEST_P(CommunicatorContract, LargeBuffersGoInParts) {
  run([&](Communicator ranks) {
    const int n = ranks.world(), me = ranks.rank();
    const std::int64_t numel = 300'007;
    std::vector<float> full, shard(static_cast<std::size_t>(numel)), expected;
    for (std::int64_t i = 0; i < n * numel; ++i) full.push_back(value_of(me, 1, i));
    ranks.reduce_scatter({.full = full.data(), .shard = shard.data(), .shard_numel = numel});
    for (std::int64_t i = 0; i < n * numel; ++i) {
      float sum = value_of(0, 1, i);
      for (int peer = 1; peer < n; ++peer) sum += value_of(peer, 1, i);
      expected.push_back(sum);
    }
    ranks.all_reduce(full.data(), n * numel);
    EXPECT_TRUE(raw(full) == raw(expected));
    std::vector<float> gathered(full.size());
    ranks.all_gather(shard.data(), gathered.data(), numel * 4);
    EXPECT_TRUE(raw(gathered) == raw(expected));
    ranks.all_to_all(full.data(), gathered.data(), numel * 4);
    for (int peer = 0; peer < n; ++peer)
      EXPECT_TRUE(std::equal(full.begin() + me * numel, full.begin() + (me + 1) * numel,
                             gathered.begin() + peer * numel));
    if (n == 1) return;
    const auto message = bytes_of(0, 9, 1'000'003);
    std::vector<std::uint8_t> received(message.size());
    if (me == 0) ranks.send(message.data(), 1'000'003, n - 1);
    if (me == n - 1) ranks.recv(received.data(), 1'000'003, 0);
    if (me == n - 1) {
      EXPECT_TRUE(received == message);
    }
  });
}

}  // namespace
}  // namespace tessera::contract
