// What the arenas of a host's ranks would take together.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "src/device/disk_file.h"
#include "src/device/memory_limits.h"
#include "src/engine/memory_room.h"
#include "tessera/machine.h"
#include "tessera/memory_plan.h"
#include "tests/engine/toy.h"

namespace tessera::testing {
namespace {

// Of each rank; empty where it was not refused.
std::vector<std::string> refusals(const std::vector<std::int64_t>& bytes, HostMemory memory = {}) {
  std::vector<std::string> messages(bytes.size());
  run_local(static_cast<int>(bytes.size()), {}, [&](Communicator ranks) {
    const auto rank = static_cast<std::size_t>(ranks.rank());
    HostMemory of_rank = memory;
    of_rank.bytes = bytes[rank];
    try {
      check_memory_room(ranks, place_on_host(ranks), of_rank);
    } catch (const EnvironmentError& error) {
      messages[rank] = error.what();
    }
  });
  return messages;
}

void expect_words(const std::string& message, const std::vector<std::string>& parts) {
  for (const std::string& part : parts)
    EXPECT_NE(message.find(part), std::string::npos) << "'" << part << "' is not in: " << message;
}

// Three quarters of what there is.
std::int64_t most_of_it() { return (read_machine().available_bytes + device::swap_free_bytes()) / 4 * 3; }

TEST(MemoryRoom, IsForAllRanksOfAHostTogether) {
  const std::int64_t most = most_of_it();
  EXPECT_EQ(refusals({most}), std::vector<std::string>{""});
  EXPECT_EQ(refusals({1 << 20, 1, 0}), std::vector<std::string>(3));
  const std::vector<std::string> refused = refusals({most, 0, most});
  EXPECT_EQ(refused, std::vector<std::string>(3, refused[0]));
  expect_words(refused[0], {"cannot take arenas of " + std::to_string(2 * most) + " bytes (",
                            " for 3 ranks on this host", "are available", "are missing"});
}

// What keeps its files in memory is no disk; what is on one already need not be told to go there.
TEST(MemoryRoom, CountsFilesThatLieInMemory) {
  MemoryPlan plan;
  plan.spaces[0].arena_bytes = 1000;
  plan.spaces[1].arena_bytes = 200;
  plan.spaces[2].arena_bytes = 30;
  EngineOptions options;
  EXPECT_EQ(host_memory_of(options, plan).bytes, 1200);
  options.strategy.offload.states = Space::disk;
  options.disk_directory = "/proc";  // which has files in neither
  EXPECT_EQ(host_memory_of(options, plan).bytes, 1200);
  const std::string keep = "keep states on the disk", less = "shard more";
  const std::vector<std::int64_t> too_much = {std::int64_t{1} << 60};
  expect_words(refusals(too_much)[0], {less, keep});
  const std::string on_disk = refusals(too_much, host_memory_of(options, plan))[0];
  expect_words(on_disk, {less});
  EXPECT_EQ(on_disk.find("the disk"), std::string::npos) << on_disk;
  if (!device::is_of_memory("/dev/shm")) GTEST_SKIP() << "/dev/shm is not in memory here";
  options.disk_directory = "/dev/shm";
  EXPECT_EQ(host_memory_of(options, plan).bytes, 1230);
  options.device = DeviceType::cuda;
  EXPECT_EQ(host_memory_of(options, plan).bytes, 230);
  const std::string in_memory = refusals(too_much, host_memory_of(options, plan))[0];
  expect_words(in_memory, {less, "name a directory on a disk: the file system of '/dev/shm' is in memory"});
  EXPECT_EQ(in_memory.find(keep), std::string::npos) << in_memory;
}

// Of engines, before any has taken its arena: each of these alone would fit.
TEST(MemoryRoom, EnginesThatDoNotFitTogetherAreRefused) {
  EngineOptions options = toy_options(2, 0);
  options.optimizer.groups = {{.name = "all"}};
  // Of 12 bytes at least: the parameter and its moments.
  const std::vector<UnitSpec> units = {{"wide", {{.name = "wide", .shape = {most_of_it() / 12}}}}};
  std::vector<std::string> messages;
  try {
    run_local(
        2, {}, [&](Communicator world) { Engine engine(world, units, options); }, &messages);
    ADD_FAILURE() << "taken";
  } catch (const EnvironmentError&) {
  }
  for (const std::string& message : messages) expect_words(message, {"cannot take arenas of", "for 2 ranks"});
}

}  // namespace
}  // namespace tessera::testing
