// Runs that save, in a simulated world with a simulated disk: however they end, what is left on the disk
// resumes, with the states of an undisturbed run, at no earlier step than the last that was told to be saved.
//   TESSERA_SEEDS=FROM:COUNT    other seeds, or more
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <iostream>
#include <map>

#include "tessera/checkpoint.h"
#include "tests/program/seeds.h"
#include "tests/simulated/disk.h"
#include "tests/simulated/toy_run.h"

namespace tessera::simulated {
namespace {

namespace fs = std::filesystem;
using testing::read_everything;
using testing::toy_fill;
using testing::toy_step;
using testing::toy_units;
using namespace std::chrono_literals;

constexpr int kSteps = 3;

// In memory where there is such a folder: no sync then waits for a true disk.
fs::path scratch() {
  const fs::path memory = "/dev/shm";
  std::error_code ignored;
  const fs::path base = fs::is_directory(memory, ignored) ? memory : fs::temp_directory_path();
  return base / fmt::format("tessera-simulated-{}", ::getpid());
}

struct Case {
  int ranks;
  int stage;
  bool beside;  // saves go on while the next step runs
};
constexpr std::array kCases = {Case{2, 3, false}, Case{2, 1, true}, Case{1, 0, false}, Case{3, 2, true}};

struct Result : Run {
  std::int64_t began = 0;  // the step that it went on from
  std::int64_t saved = 0;  // the last step whose save returned on rank 0
  std::int64_t points = 0, room_calls = 0;
};

// From the newest checkpoint, if there is one, to the end.
std::vector<float> train(const Communicator& own, const Case& of, const fs::path& folder, Result& result) {
  Engine engine(own, toy_units(DType::bf16), simulated_toy_options(of.ranks, of.stage));
  engine.initialize(toy_fill());
  const Communicator files = Communicator(own).duplicate("files");
  std::int64_t step = 0;
  if (const auto newest = latest_checkpoint(folder, files))
    step = load_checkpoint(*newest, files, engine).step;
  const bool first = own.rank() == 0;
  if (first) result.began = step;
  PendingCheckpoint pending;
  std::int64_t pending_step = 0;
  const auto finish = [&] {
    if (!pending) return;
    pending.finish();
    if (first) result.saved = pending_step;
  };
  while (step < kSteps) {
    toy_step(engine, {.step = static_cast<int>(step)});
    finish();
    const RunState state = {.step = ++step, .configuration = "toy"};
    pending_step = step;
    if (of.beside) {
      pending = begin_checkpoint(folder, files, engine, state, 1);
    } else {
      save_checkpoint(folder, files, engine, state, 1);
      if (first) result.saved = step;
    }
  }
  finish();
  return read_everything(engine);
}

// `ended` is called when nothing more happens. What is killed saves nothing more behind that.
Result run(const Case& of, std::uint64_t seed, const Plan& plan, const fs::path& folder,
           const std::function<void()>& ended) {
  Result result, at_end;
  run_ranks(
      result, of.ranks, seed, plan, [&](const Communicator& own) { return train(own, of, folder, result); },
      [&](const World& world) {
        for (int rank = 0; rank < of.ranks; ++rank) result.points += world.points(rank);
        at_end = result;
        ended();
      });
  return at_end;
}

const Result& expected(std::size_t which) {
  static std::map<std::size_t, Result> all;
  const auto [found, is_new] = all.try_emplace(which);
  if (!is_new) return found->second;
  Disk disk(scratch() / "undisturbed", {});
  found->second = run(kCases[which], 0, {}, scratch() / "undisturbed" / "run", [] {});
  found->second.room_calls = disk.room_calls();
  return found->second;
}

enum class Kind : std::uint8_t { none, kill, power, full, count };
constexpr std::array<const char*, static_cast<std::size_t>(Kind::count)> kKinds = {
    "runs to the end", "kills of a rank", "power failures", "full disks"};

Kind kind_of(std::uint64_t seed) {
  constexpr std::array kOf = {Kind::none, Kind::power, Kind::kill, Kind::power,
                              Kind::full, Kind::power, Kind::kill};
  return kOf[seed / kCases.size() % kOf.size()];
}

struct Seed {
  std::uint64_t number = 0;
  std::size_t which = number % kCases.size();
  Kind kind = kind_of(number);
  Plan plan = {};
  Disk::Faults disk = {};

  explicit Seed(std::uint64_t seed) : number(seed) {
    Draws draws(seed * 2 + 1);
    plan.switches_one_in = draw_switches(draws);
    plan.process = static_cast<int>(draws.below(kCases[which].ranks));
    const Result& whole = expected(which);
    if (kind == Kind::kill || kind == Kind::power) {
      plan.fault = kind == Kind::kill ? Fault::kill : Fault::power;
      const std::int64_t points = kind == Kind::kill ? whole.points / kCases[which].ranks : whole.points;
      plan.at = 1 + draws.below(points * 9 / 8);
    }
    if (kind == Kind::full)
      disk = {.full_from = 1 + draws.below(whole.room_calls), .full_calls = 1 + draws.below(10)};
  }
  std::string words() const {
    const Case& of = kCases[which];
    return fmt::format(
        "seed {}: {} ranks, stage {}, {}; {}: rank {}, point {}; another thread goes on at one of {} points; "
        "full from call {} for {}",
        number, of.ranks, of.stage, of.beside ? "saves beside steps" : "saves between steps",
        kKinds[static_cast<std::size_t>(kind)], plan.process, plan.at, plan.switches_one_in, disk.full_from,
        disk.full_calls);
  }
};

struct Tally {
  std::array<std::int64_t, static_cast<std::size_t>(Kind::count)> drawn{}, ended{}, resumed{};
  std::array<std::int64_t, kSteps + 1> from{};
};

std::string check_resumed(const Seed& seed, const Result& resumed, std::int64_t saved) {
  if (!resumed.wrong.empty()) return "resumed: " + resumed.wrong;
  for (int rank = 0; rank < resumed.ranks.count(); ++rank) {
    if (!resumed.ranks[rank].error.empty())
      return fmt::format("rank {} does not resume: {}", rank, resumed.ranks[rank].error);
    if (resumed.ranks[rank].states != expected(seed.which).ranks[rank].states)
      return fmt::format("rank {} has other states, from step {}", rank, resumed.began);
  }
  if (resumed.began < saved)
    return fmt::format("resumed from step {}, and step {} was told to be saved", resumed.began, saved);
  return "";
}

std::string check(const Seed& seed, Tally& tally) {
  const Case& of = kCases[seed.which];
  const fs::path root = scratch() / "disk", left = scratch() / "left";
  fs::remove_all(left);
  Result result;
  {
    Disk disk(root, seed.disk);
    Draws draws(seed.number * 2 + 77);
    result = run(of, seed.number, seed.plan, root / "run", [&] {
      if (seed.kind == Kind::power)
        disk.leave_lasting(left, draws);
      else
        disk.leave_all(left);
      disk.cut_off();
    });
    if (!result.wrong.empty()) return result.wrong;
    const bool failed = any_failed(result);
    const auto kind = static_cast<std::size_t>(seed.kind);
    ++tally.drawn[kind];
    tally.ended[kind] += failed || (seed.kind == Kind::power && result.fault_at >= 0ns);
    if (failed && (seed.kind == Kind::none || (seed.kind == Kind::full && disk.refused() == 0)))
      return "without a fault it fails: " + result.ranks[0].error;
  }
  const Result resumed = run(of, seed.number + 1, {}, left / "run", [] {});
  tally.resumed[static_cast<std::size_t>(seed.kind)] += resumed.began > 0 && resumed.began < kSteps;
  ++tally.from[static_cast<std::size_t>(resumed.began)];
  return check_resumed(seed, resumed, result.saved);
}

TEST(SimulatedSaves, ResumeWhateverWasLeft) {
  const testing::Seeds seeds(1500);
  Tally tally;
  int wrong = 0;
  for (std::uint64_t number = seeds.from; number < seeds.end() && wrong < 5; ++number) {
    const Seed seed(number);
    const std::string what = check(seed, tally);
    if (what.empty()) continue;
    ++wrong;
    ADD_FAILURE() << what << "\n" << seed.words();
  }
  fs::remove_all(scratch());
  for (std::size_t kind = 0; kind < tally.drawn.size(); ++kind)
    std::cout << fmt::format("{:>6} {}, of which {} ended the run, {} resumed from a step between\n",
                             tally.drawn[kind], kKinds[kind], tally.ended[kind], tally.resumed[kind]);
  for (std::size_t step = 0; step < tally.from.size(); ++step)
    std::cout << fmt::format("{:>6} began again from step {}\n", tally.from[step], step);
}

}  // namespace
}  // namespace tessera::simulated
