// What the arenas of a host's ranks would take together.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "src/engine/memory_room.h"
#include "tests/engine/toy.h"

namespace tessera::testing {
namespace {

// Of each rank; empty where it was not refused.
std::vector<std::string> refusals(const std::vector<std::int64_t>& bytes) {
  std::vector<std::string> messages(bytes.size());
  run_local(static_cast<int>(bytes.size()), {}, [&](Communicator ranks) {
    const auto rank = static_cast<std::size_t>(ranks.rank());
    try {
      check_memory_room(ranks, bytes[rank]);
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

TEST(MemoryRoom, IsForAllRanksOfAHostTogether) {
  const Machine machine = read_machine();
  const std::int64_t most = (machine.available_bytes + machine.swap_bytes) / 4 * 3;
  EXPECT_EQ(refusals({most}), std::vector<std::string>{""});
  EXPECT_EQ(refusals({1 << 20, 1, 0}), std::vector<std::string>(3));
  const std::vector<std::string> refused = refusals({most, 0, most});
  EXPECT_EQ(refused, std::vector<std::string>(3, refused[0]));
  expect_words(refused[0], {"cannot take arenas of " + std::to_string(2 * most) + " bytes (",
                            " for 3 ranks on", "are available", "are missing"});
}

// Of engines, before any has taken its arena: each of these alone would fit.
TEST(MemoryRoom, EnginesThatDoNotFitTogetherAreRefused) {
  const Machine machine = read_machine();
  EngineOptions options = toy_options(2, 0);
  options.external_bytes = (machine.available_bytes + machine.swap_bytes) / 4 * 3;
  std::vector<std::string> messages;
  try {
    run_local(
        2, {}, [&](Communicator world) { Engine engine(world, toy_units(DType::fp32), options); }, &messages);
    ADD_FAILURE() << "taken";
  } catch (const EnvironmentError&) {
  }
  for (const std::string& message : messages) expect_words(message, {"cannot take arenas of", "for 2 ranks"});
}

}  // namespace
}  // namespace tessera::testing
