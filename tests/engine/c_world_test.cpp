// Ranks and worlds by the C API: collectives have the bits of the Communicator, a run tells who failed, and a
// world that is not the caller's is not destroyed.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <vector>

#include "tessera/communicator.h"
#include "tessera/id_vector.h"
#include "tests/comm/gpus.h"
#include "tests/engine/c_try.h"

namespace tessera::testing {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

::testing::AssertionResult says(const char* part) {
  if (std::strstr(tessera_last_error(), part) != nullptr) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << "the error is: " << tessera_last_error();
}

using Body = std::function<tessera_status(tessera_world* world, int rank)>;

tessera_status run_ranks(int ranks, const Body& body) {
  return tessera_run_ranks(
      ranks, 20'000,
      [](tessera_world* world, void* user) -> tessera_status {
        std::int32_t rank = -1;
        TRY(tessera_world_rank(world, &rank));
        return (*static_cast<const Body*>(user))(world, rank);
      },
      const_cast<Body*>(&body));
}

// One unit, two uses a step.
tessera_status make_engine(tessera_world* world, tessera_engine** engine) {
  const std::int64_t five = 5;
  const tessera_parameter weight{"weight", &five, 1, TESSERA_FP32, 0, 0, nullptr, nullptr, 0};
  const tessera_unit unit{"unit", &weight, 1, 0, 0, 0, 0, 0, 0};
  tessera_options options;
  TRY(tessera_options_init(&options, sizeof options));
  return tessera_engine_create(world, &unit, 1, &options, engine);
}

// Sums of these depend on their order.
std::vector<double> metrics(int rank, int numel) {
  std::vector<double> values(static_cast<std::size_t>(numel));
  for (int k = 0; k < numel; ++k)
    values[static_cast<std::size_t>(k)] = std::ldexp(std::sin(rank * 31 + k), (rank * 17 + k) % 60);
  return values;
}

::testing::AssertionResult same_bits(const std::vector<double>& a, const std::vector<double>& b) {
  if (a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof a[0]) == 0))
    return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure()
         << ::testing::PrintToString(a) << " and " << ::testing::PrintToString(b);
}

// What each rank has behind it, by rank.
using All = IdVector<std::vector<double>>;

All all_reduced(int ranks, int operation, const All& inputs, bool of_gpus = false) {
  All results = inputs;
  const tessera_status status = run_ranks(ranks, [&](tessera_world* host, int rank) -> tessera_status {
    tessera_world* gpus = nullptr;
    if (of_gpus) TRY(tessera_world_create_nccl(host, 20'000, &gpus));
    std::vector<double>& own = results[rank];
    TRY(tessera_world_all_reduce(of_gpus ? gpus : host, operation, own.data(),
                                 static_cast<std::int64_t>(own.size())));
    TRY(tessera_world_barrier(of_gpus ? gpus : host));
    return tessera_world_destroy(gpus);
  });
  EXPECT_EQ(status, TESSERA_OK) << tessera_last_error();
  return results;
}

All inputs_of(int ranks, int numel) {
  All inputs;
  for (int rank = 0; rank < ranks; ++rank) inputs.push_back(metrics(rank, numel));
  return inputs;
}

TEST(CWorld, SumsHaveTheBitsOfTheCommunicator) {
  for (const int ranks : {1, 2, 3})
    for (const int numel : {0, 1, 1000}) {
      const All inputs = inputs_of(ranks, numel);
      All expected = inputs;
      run_local(ranks, {},
                [&](Communicator world) { world.all_reduce(expected[world.rank()].data(), numel); });
      const All results = all_reduced(ranks, TESSERA_SUM, inputs);
      for (std::size_t rank = 0; rank < results.size(); ++rank)
        EXPECT_TRUE(same_bits(results[rank], expected[rank])) << ranks << " ranks, rank " << rank;
    }
}

TEST(CWorld, LargestOfAllRanks) {
  for (const int ranks : {1, 2, 3})
    for (const int numel : {0, 1, 10'000}) {
      const All inputs = inputs_of(ranks, numel);
      std::vector<double> expected = inputs[0];
      for (const std::vector<double>& input : inputs)
        for (std::size_t k = 0; k < input.size(); ++k) expected[k] = std::max(expected[k], input[k]);
      for (const std::vector<double>& result : all_reduced(ranks, TESSERA_MAX, inputs))
        EXPECT_TRUE(same_bits(result, expected));
    }
}

TEST(CWorld, TheLargestIsTheSameBitsOnAllRanks) {
  const double infinity = std::numeric_limits<double>::infinity();
  const All results =
      all_reduced(2, TESSERA_MAX, {{0.0, -0.0, kNan, 1.0, -infinity}, {-0.0, 0.0, 1.0, -kNan, infinity}});
  EXPECT_TRUE(same_bits(results[0], results[1]));
  EXPECT_EQ(results[0][0], 0.0);
  EXPECT_TRUE(std::isnan(results[0][2]) && std::isnan(results[0][3]));
  EXPECT_EQ(results[0][4], infinity);
}

TEST(CWorld, OfGpusReducesMemoryOfTheHost) {
  if (const std::string why = contract::missing_gpus(2); !why.empty()) GTEST_SKIP() << why;
  const All inputs = inputs_of(2, 100);
  for (const int operation : {TESSERA_SUM, TESSERA_MAX}) {
    const All expected = all_reduced(2, operation, inputs), results = all_reduced(2, operation, inputs, true);
    for (std::size_t rank = 0; rank < 2; ++rank) EXPECT_TRUE(same_bits(results[rank], expected[rank]));
  }
}

// Between the calls of a step, on the engine's own world.
TEST(CWorld, ReducesDuringAStep) {
  const auto body = [](tessera_world* world, int rank) -> tessera_status {
    tessera_engine* engine = nullptr;
    tessera_lease* lease = nullptr;
    std::int64_t applied = -1;
    TRY(make_engine(world, &engine));
    TRY(tessera_begin(engine, TESSERA_TRAIN, 1));
    TRY(tessera_use_unit(engine, 0, TESSERA_FORWARD, &lease));
    double value = rank + 1;
    TRY(tessera_world_all_reduce(world, TESSERA_SUM, &value, 1));
    EXPECT_EQ(value, 3.0);
    TRY(tessera_lease_end(lease));
    TRY(tessera_world_barrier(world));
    TRY(tessera_abandon(engine, nullptr));
    TRY(tessera_steps_applied(engine, &applied));
    EXPECT_EQ(applied, 0);
    EXPECT_EQ(tessera_steps_applied(engine, nullptr), TESSERA_USAGE);
    EXPECT_EQ(tessera_step_timing(engine, nullptr), TESSERA_USAGE);
    return tessera_engine_destroy(engine);
  };
  EXPECT_EQ(run_ranks(2, body), TESSERA_OK) << tessera_last_error();
}

TEST(CWorld, RefusesWhatCannotBeReduced) {
  const auto body = [](tessera_world* world, int) -> tessera_status {
    double value = 0;
    EXPECT_EQ(tessera_world_barrier(nullptr), TESSERA_USAGE);
    EXPECT_EQ(tessera_world_all_reduce(nullptr, TESSERA_SUM, &value, 1), TESSERA_USAGE);
    EXPECT_TRUE(says("world is null"));
    EXPECT_EQ(tessera_world_all_reduce(world, 2, &value, 1), TESSERA_USAGE);
    EXPECT_TRUE(says("operation 2 is not known; use 0 to 1"));
    EXPECT_EQ(tessera_world_all_reduce(world, TESSERA_MAX, &value, -1), TESSERA_USAGE);
    EXPECT_TRUE(says("values has a count of -1"));
    EXPECT_EQ(tessera_world_all_reduce(world, TESSERA_SUM, nullptr, 1), TESSERA_USAGE);
    EXPECT_TRUE(says("values is null"));
    return TESSERA_OK;
  };
  EXPECT_EQ(run_ranks(1, body), TESSERA_OK) << tessera_last_error();
  EXPECT_EQ(run_ranks(2, body), TESSERA_OK) << tessera_last_error();
}

TEST(CWorld, RanksThatCallDifferentThingsAreTold) {
  const auto body = [](tessera_world* world, int rank) -> tessera_status {
    std::array<double, 2> values{};
    return rank == 0 ? tessera_world_all_reduce(world, TESSERA_SUM, values.data(), 2)
                     : tessera_world_all_reduce(world, TESSERA_MAX, values.data(), 2);
  };
  EXPECT_EQ(run_ranks(2, body), TESSERA_COMMUNICATION);
}

TEST(CWorld, ARankMainsOwnIsNotDestroyed) {
  const auto body = [](tessera_world* world, int) -> tessera_status {
    EXPECT_EQ(tessera_world_destroy(world), TESSERA_USAGE);
    EXPECT_TRUE(says("leave it to tessera_run_ranks"));
    EXPECT_EQ(tessera_world_destroy(nullptr), TESSERA_OK);
    return tessera_world_barrier(world);  // it is still there
  };
  for (const int ranks : {1, 2}) EXPECT_EQ(run_ranks(ranks, body), TESSERA_OK) << tessera_last_error();
}

// Makes an engine fail, and goes on.
tessera_status handle_a_failure(tessera_world* world) {
  tessera_engine* engine = nullptr;
  TRY(make_engine(world, &engine));
  TRY(tessera_begin(engine, TESSERA_TRAIN, 1));
  EXPECT_EQ(tessera_skip_unit(engine, 0, TESSERA_BACKWARD), TESSERA_USAGE);
  return tessera_engine_destroy(engine);
}

TEST(CRun, AFailureThatEveryRankHandledIsTold) {
  for (const int ranks : {1, 2}) {
    const auto body = [&](tessera_world* world, int rank) -> tessera_status {
      if (rank == ranks - 1) return handle_a_failure(world);
      tessera_engine* engine = nullptr;
      make_engine(world, &engine);  // or the other rank failed before
      return tessera_engine_destroy(engine);
    };
    EXPECT_EQ(run_ranks(ranks, body), TESSERA_COMMUNICATION);
    EXPECT_TRUE(says(ranks == 1 ? "rank 0 failed: " : "rank 1 failed: "));
    EXPECT_TRUE(says("the program expects"));
  }
  const auto fails = [](tessera_world* world, int) -> tessera_status {
    return tessera_world_fail(world, "its data is lost");
  };
  EXPECT_EQ(run_ranks(1, fails), TESSERA_COMMUNICATION);
  EXPECT_TRUE(says("rank 0 failed: its data is lost"));
}

// Rank 1 fails first, and returns TESSERA_OK; so it is rank 0 who tells.
TEST(CRun, WhereTheFirstToFailReturnsOkTheNextIsTold) {
  const auto body = [](tessera_world* world, int rank) -> tessera_status {
    if (rank == 1) return tessera_world_fail(world, "its data is lost");
    EXPECT_EQ(tessera_world_barrier(world), TESSERA_COMMUNICATION);
    EXPECT_TRUE(says("its data is lost"));
    return TESSERA_USER + 3;
  };
  EXPECT_EQ(run_ranks(2, body), TESSERA_USER + 3);
  EXPECT_TRUE(says("rank 0 returned 103"));
}

}  // namespace
}  // namespace tessera::testing
