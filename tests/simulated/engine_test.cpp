// Engines of several ranks in a simulated world: whatever the order of their threads, the bits are those of
// an undisturbed run; what fails is named by every other rank within the deadline.
//   TESSERA_SEEDS=FROM:COUNT    other seeds, or more
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <array>
#include <iostream>
#include <map>

#include "tests/program/seeds.h"
#include "tests/simulated/toy_run.h"

namespace tessera::simulated {
namespace {

using std::chrono::nanoseconds;
using testing::read_everything;
using testing::toy_fill;
using testing::toy_step;
using testing::toy_units;
using namespace std::chrono_literals;

constexpr int kSteps = 2;
constexpr const char* kThrown = "the disk is on fire";

struct Case {
  std::string name;
  int ranks;
  EngineOptions options;
};

std::vector<Case> make_cases() {
  std::vector<Case> cases;
  const auto add = [&](std::string name, int ranks, int stage,
                       const std::function<void(EngineOptions&)>& change) {
    EngineOptions options = simulated_toy_options(ranks, stage);
    change(options);
    cases.push_back({std::move(name), ranks, options});
  };
  add("stage 3 of two ranks", 2, 3, [](EngineOptions&) {});
  add("stage 1 of three ranks", 3, 1, [](EngineOptions&) {});
  add("stage 2, two prefetched", 2, 2, [](EngineOptions& options) { options.strategy.prefetch = 2; });
  add("stage 3, states on the host", 2, 3,
      [](EngineOptions& options) { options.strategy.offload.states = Space::host; });
  return cases;
}

const std::vector<Case>& cases() {
  static const std::vector<Case> all = make_cases();
  return all;
}

// What a seed does, besides the world's own plan.
struct Scenario {
  Plan plan;
  int throws = -1;  // rank whose own code throws, in a use of the second step
  int uses = 0;     // before it
};

struct Result : Run {
  IdVector<std::int64_t> points;
  std::uint64_t schedule = 0;
};

// The steps of one rank.
std::vector<float> train(const Communicator& own, const Case& of, const Scenario& scenario) {
  Engine engine(own, toy_units(DType::bf16), of.options);
  engine.initialize(toy_fill());
  for (int step = 0; step < kSteps; ++step) {
    int uses = scenario.uses;
    testing::ToyStep toy{.step = step};
    if (own.rank() == scenario.throws && step == 1)
      toy.skip = [&](UnitId, Pass, int) {
        if (uses-- == 0) throw std::runtime_error(kThrown);
        return false;
      };
    toy_step(engine, toy);
  }
  return read_everything(engine);
}

Result run(const Case& of, std::uint64_t seed, const Scenario& scenario) {
  Result result;
  run_ranks(
      result, of.ranks, seed, scenario.plan,
      [&](const Communicator& own) { return train(own, of, scenario); },
      [&](const World& world) {
        result.schedule = world.schedule();
        for (int rank = 0; rank < of.ranks; ++rank) result.points.push_back(world.points(rank));
      });
  return result;
}

// The undisturbed run of a case.
const Result& expected(const Case& of) {
  static std::map<std::string, Result> all;
  const auto [found, is_new] = all.try_emplace(of.name);
  if (is_new) found->second = run(of, 0, {});
  return found->second;
}

enum class Kind : std::uint8_t { none, late, jump, short_stall, long_stall, kill, throws, count };
constexpr std::array<const char*, static_cast<std::size_t>(Kind::count)> kKinds = {
    "threads in any order",
    "threads that are late",
    "clock jumps",
    "stalls",
    "stalls beyond the deadline",
    "kills",
    "errors of a rank's own"};

// Which fault a seed has; any of them may also have threads that are late.
Kind kind_of(std::uint64_t seed) {
  return static_cast<Kind>(seed / cases().size() % static_cast<std::size_t>(Kind::count));
}
const Case& case_of(std::uint64_t seed) { return cases()[seed % cases().size()]; }

Scenario scenario_of(std::uint64_t seed) {
  Draws draws(seed * 2 + 1);
  const Case& of = case_of(seed);
  Scenario scenario;
  Plan& plan = scenario.plan;
  plan.switches_one_in = draw_switches(draws);
  const Kind kind = kind_of(seed);
  if (kind == Kind::late || draws.one_in(3)) {
    plan.late_one_in = 4 + draws.below(100);
    plan.latest = nanoseconds(std::int64_t{1} << (6 + draws.below(18)));
  }
  plan.process = static_cast<int>(draws.below(of.ranks));
  plan.at = 1 + draws.below(expected(of).points[plan.process] * 5 / 4);
  const auto between = [&](nanoseconds low, nanoseconds high) {
    return low + nanoseconds(draws.below((high - low).count()));
  };
  switch (kind) {
    case Kind::jump:
      plan.fault = Fault::jump;
      plan.time = between(1ms, 1h);
      break;
    case Kind::short_stall:
      plan.fault = Fault::stall;
      plan.time = between(1ms, kDeadline / 2);
      break;
    case Kind::long_stall:
      plan.fault = Fault::stall;
      plan.time = between(2 * kDeadline, 10 * kDeadline);
      break;
    case Kind::kill:
      plan.fault = Fault::kill;
      break;
    case Kind::throws:
      scenario.throws = plan.process;
      scenario.uses = static_cast<int>(draws.below(10));
      break;
    default:
      break;
  }
  return scenario;
}

// Every rank has the states of the undisturbed run.
std::string check_undisturbed(const Result& result, const Result& undisturbed) {
  for (int rank = 0; rank < result.ranks.count(); ++rank) {
    if (!result.ranks[rank].error.empty())
      return fmt::format("rank {} fails: {}", rank, result.ranks[rank].error);
    if (result.ranks[rank].states != undisturbed.ranks[rank].states)
      return fmt::format("rank {} has other states", rank);
  }
  return "";
}

// Every other rank has these states, or names the rank that failed in time.
std::string check_failed(const Result& result, const Result& undisturbed, int culprit, nanoseconds limit) {
  for (int rank = 0; rank < result.ranks.count(); ++rank) {
    if (rank == culprit) continue;
    const Outcome& outcome = result.ranks[rank];
    if (outcome.error.empty()) {
      if (outcome.states != undisturbed.ranks[rank].states)
        return fmt::format("rank {} has other states", rank);
      continue;
    }
    if (outcome.error.find(fmt::format("rank {}", culprit)) == std::string::npos)
      return fmt::format("rank {} does not name rank {}: {}", rank, culprit, outcome.error);
    if (outcome.ended > limit)
      return fmt::format("rank {} ends after {} ms, {} ms too late: {}", rank, outcome.ended / 1ms,
                         (outcome.ended - limit) / 1ms, outcome.error);
  }
  return "";
}

// What is wrong with a seed; "" if nothing is.
std::string check(std::uint64_t seed, const Scenario& scenario, const Result& result) {
  if (!result.wrong.empty()) return result.wrong;
  const Result& undisturbed = expected(case_of(seed));
  const bool happened = result.fault_at >= 0ns;
  // A wait that begins just before the fault ends by the deadline; so does the last one for who may still
  // read.
  const nanoseconds slack = scenario.plan.latest * 1000 + 1s;
  switch (kind_of(seed)) {
    case Kind::long_stall:
    case Kind::kill:
      if (!happened) break;
      return check_failed(result, undisturbed, scenario.plan.process,
                          result.fault_at + 2 * kDeadline + slack);
    case Kind::throws: {
      if (result.ranks[scenario.throws].error != kThrown)
        return fmt::format("rank {} was to throw: {}", scenario.throws, result.ranks[scenario.throws].error);
      return check_failed(result, undisturbed, scenario.throws, result.ranks[scenario.throws].ended + slack);
    }
    default:
      break;
  }
  return check_undisturbed(result, undisturbed);
}

std::string words_of(std::uint64_t seed, const Scenario& scenario) {
  const Plan& plan = scenario.plan;
  return fmt::format(
      "seed {}: {}, {}, rank {} at point {}, for {} ms; another thread goes on at one of {} points, one of "
      "{} is late by up to {} us; throws in use {}",
      seed, case_of(seed).name, kKinds[static_cast<std::size_t>(kind_of(seed))], plan.process, plan.at,
      plan.time / 1ms, plan.switches_one_in, plan.late_one_in, plan.latest / 1us, scenario.uses);
}

TEST(SimulatedEngines, AreRightOrSayWhoFailed) {
  const testing::Seeds seeds(10000);
  std::array<std::int64_t, static_cast<std::size_t>(Kind::count)> drawn{}, failed{};
  int wrong = 0;
  for (std::uint64_t seed = seeds.from; seed < seeds.end() && wrong < 5; ++seed) {
    const Scenario scenario = scenario_of(seed);
    const Result result = run(case_of(seed), seed, scenario);
    const auto kind = static_cast<std::size_t>(kind_of(seed));
    ++drawn[kind];
    failed[kind] += any_failed(result);
    const std::string what = check(seed, scenario, result);
    if (what.empty()) continue;
    ++wrong;
    ADD_FAILURE() << what << "\n" << words_of(seed, scenario);
  }
  for (std::size_t kind = 0; kind < drawn.size(); ++kind)
    std::cout << fmt::format("{:>6} of {}, {} ended the run\n", drawn[kind], kKinds[kind], failed[kind]);
}

// A failing seed comes again.
TEST(SimulatedEngines, EqualSeedsGiveEqualRuns) {
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    const Scenario scenario = scenario_of(seed);
    const Result one = run(case_of(seed), seed, scenario), again = run(case_of(seed), seed, scenario);
    EXPECT_EQ(one.schedule, again.schedule) << words_of(seed, scenario);
    for (int rank = 0; rank < one.ranks.count(); ++rank) {
      EXPECT_EQ(one.ranks[rank].error, again.ranks[rank].error);
      EXPECT_EQ(one.ranks[rank].ended, again.ranks[rank].ended);
    }
    EXPECT_NE(one.schedule, run(case_of(seed), seed + 1000, scenario).schedule);
  }
}

}  // namespace
}  // namespace tessera::simulated
