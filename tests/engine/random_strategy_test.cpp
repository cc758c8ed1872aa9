// Random combinations of everything that must not change a bit: a model, a mesh and a history of steps are
// drawn from a seed, run by the plainest strategy and by a random one, and compared, fingerprints included.
// TESSERA_SEEDS=FROM:COUNT runs other seeds than the few of every test run.
#include <gtest/gtest.h>

#include <iostream>
#include <mutex>

#include "tessera/budget.h"
#include "tessera/checkpoint.h"
#include "tessera/device.h"
#include "tests/engine/random_runner.h"
#include "tests/program/seeds.h"
#include "tests/trainer/temporary_folder.h"

namespace tessera::testing {
namespace {

// All that a rank sees, bit by bit.
struct Log {
  std::vector<double> values;
  std::vector<std::pair<std::size_t, std::string>> names;  // from which value on
  void add(const std::string& name, double value) {
    names.emplace_back(values.size(), name);
    values.push_back(value);
  }
  void add(const std::string& name, const std::vector<float>& all) {
    names.emplace_back(values.size(), name);
    values.insert(values.end(), all.begin(), all.end());
  }
  std::string name_of(std::size_t value) const {
    const auto behind =
        std::ranges::upper_bound(names, value, {}, &std::pair<std::size_t, std::string>::first);
    return (behind - 1)->second + " + " + std::to_string(value - (behind - 1)->first);
  }
};

void add(Log& log, const std::string& name, const StepResult& result, bool abandoned) {
  log.add(name + " reason " + result.first_nonfinite, static_cast<double>(result.reason));
  log.add(name + " step", static_cast<double>(result.step));
  log.add(name + " applied", result.applied ? 1 : 0);
  log.add(name + " loss scale", result.loss_scale);
  if (abandoned) return;  // what the ranks have computed until then is theirs
  log.add(name + " loss", result.loss);
  log.add(name + " weight", result.weight);
  log.add(name + " norm", result.gradient_norm);
  for (const double norm : result.parameter_norms) log.add(name + " parameter's norm", norm);
}

void write_some(Engine& engine, const Event& event) {
  const Layout& layout = engine.layout();
  const ParameterId id = event.at % layout.parameters();
  const tessera::Place& place = layout.place(id);
  const std::int64_t begin = event.at % place.numel;
  std::vector<float> values(static_cast<std::size_t>(std::min<std::int64_t>(place.numel - begin, 40)), 0.25f);
  engine.write(id, layout.parameter(id).trainable ? StateKind::master : StateKind::parameter, begin, values);
}

void check_memory(Engine& engine) {
  const bool in_order = engine.options().debug.strict_order && engine.options().mesh.pipeline == 1;
  for (const Space space : {Space::device, Space::host}) {
    const SpacePlan& plan = engine.plan().space(space);
    const std::int64_t most = in_order ? plan.live_peak_bytes : plan.arena_bytes;
    if (engine.bytes(space).peak_total() > most)
      throw Error(std::string(name_of(space)) + " held " + std::to_string(engine.bytes(space).peak_total()) +
                  " bytes; the plan has " + std::to_string(most));
  }
}

// Where the strategies differ in when they update, and nothing makes a step be skipped, that alone changes no
// bit.
std::string fingerprint_but_updates(const Engine& engine) {
  Numerics numerics = engine.numerics();
  EXPECT_EQ(std::erase_if(numerics.run, [](const NumericFact& fact) { return fact.what == kUpdateWaits; }),
            1);
  return fingerprint_of(numerics);
}

// `strategies`: the first, then the one behind Event::change_strategy; of one, that changes nothing.
Log run_case(const RandomCase& of, std::span<const EngineOptions> strategies) {
  const TemporaryFolder folder;
  const int ranks = strategies[0].mesh.world();
  std::mutex mutex;
  IdVector<Log> logs(ranks);
  run_local(ranks, kBlocking, [&](Communicator world) {
    Log log;
    auto runner = std::make_unique<Runner>(world, of, strategies[0]);
    const auto add_fingerprint = [&] { log.add(fingerprint_but_updates(runner->engine()), 0.0); };
    add_fingerprint();
    for (std::size_t k = 0; k < of.events.size(); ++k) {
      const Event& event = of.events[k];
      const std::string name = "event " + std::to_string(k);
      switch (event.kind) {
        case Event::Kind::step:
        case Event::Kind::abandon:
          add(log, name, runner->run(event, static_cast<int>(k)), event.kind == Event::Kind::abandon);
          break;
        case Event::Kind::finish_updates:
          runner->engine().finish_updates();
          break;
        case Event::Kind::read:
          log.add(name + " parameters", read_state(runner->engine(), StateKind::parameter));
          break;
        case Event::Kind::write:
          write_some(runner->engine(), event);
          break;
        case Event::Kind::change_strategy:
          if (strategies.size() == 1) {
            add_fingerprint();
            break;
          }
          save_checkpoint(folder.file("saved"), world, runner->engine(), {.step = 1, .configuration = {}});
          runner = nullptr;
          runner = std::make_unique<Runner>(world, of, strategies[1]);
          load_checkpoint(folder.file("saved"), world, runner->engine());
          add_fingerprint();
          break;
      }
      check_memory(runner->engine());
    }
    log.add("states", read_everything(runner->engine()));
    const std::lock_guard lock(mutex);
    logs[world.rank()] = std::move(log);
  });
  for (const Log& log : logs) {
    if (log.names != logs[0].names) throw Error("ranks differ in their fingerprints or in what they log");
    const auto same = same_bits("of a rank's values", log.values, logs[0].values);
    if (!same) throw Error(std::string("ranks differ: ") + same.message());
  }
  return logs[0];
}

::testing::AssertionResult same_logs(const Log& log, const Log& expected) {
  if (log.names != expected.names) return ::testing::AssertionFailure() << "other names of values";
  for (std::size_t k = 0; k < log.values.size(); ++k)
    if (std::memcmp(&log.values[k], &expected.values[k], sizeof(double)) != 0)
      return ::testing::AssertionFailure()
             << log.name_of(k) << " is " << log.values[k] << " and not " << expected.values[k];
  return ::testing::AssertionSuccess();
}

// ---- budgets ----

std::int64_t fullest(const std::vector<PlannedPrograms>& plans) {
  std::int64_t most = 0;
  for (const PlannedPrograms& planned : plans)
    most = std::max(most, planned.plan.space(Space::device).arena_bytes);
  return most;
}

// Of a random budget what the automatic choices make, which must keep within it; then exactly what the plan
// needs.
void draw_budget(Draws& draws, const RandomCase& of, EngineOptions& options) {
  const Mesh& mesh = options.mesh;
  const Layout layout(of.units, mesh.shard, mesh.replicate);
  const auto planned = [&] { return fullest(plan_pipeline(layout, mesh, step_specs(options))); };
  const std::int64_t budget = planned() * draws.pick(60, 110) / 100;
  CostModel cost;
  if (of.model != nullptr) cost.forward_flops = of.model->forward_flops(of.shapes[0].batch, 1);
  if (of.model != nullptr && draws.chance(40)) {
    std::vector<ActivationChoice> among(recompute_choices().begin(), recompute_choices().end());
    if (draws.chance(50))
      for (const ActivationChoice& choice : recompute_choices())
        among.push_back({.recompute = choice.recompute, .kept = Space::host});
    const ChosenActivations chosen =
        choose_activations(layout, mesh, step_specs(options), cost, {.device_bytes = budget}, among);
    const std::vector<ActivationChoice> before = options.strategy.unit_activations;
    options.strategy.unit_activations = chosen.units;
    if (chosen.arena_bytes != planned())
      throw Error("choose_activations: " + std::to_string(chosen.arena_bytes) + " bytes");
    if (chosen.arena_bytes > budget) options.strategy.unit_activations = before;  // nothing fits
  }
  if (options.strategy.offload.states != Space::device && draws.chance(40)) {
    const double share =
        choose_states_on_device(layout, mesh, step_specs(options), cost, {.device_bytes = budget});
    options.strategy.offload.states_on_device = std::max(0.0, share);
    if (share >= 0 && planned() > budget) throw Error("choose_states_on_device: beyond the budget");
  }
  if (options.strategy.placements.parameters == Placement::sharded && draws.chance(40)) {
    const int units = fit_resident_units(layout, mesh, step_specs(options), {.device_bytes = budget});
    options.strategy.resident_units = std::max(0, units);
    if (units >= 0 && planned() > budget) throw Error("fit_resident_units: beyond the budget");
  }
  options.budget.external_bytes = draws.pick(0, 1) * 1000;
  options.budget.device_bytes = planned() + options.budget.external_bytes;
}

// True where the pair was run, false where it is refused as one that no program can be made for.
bool run_seed(std::uint64_t seed) {
  RandomCase of = draw_case(seed);
  try {
    Draws draws(seed + 0x9E3779B97F4A7C15);
    for (EngineOptions& options : of.varied)
      if (draws.chance(40)) draw_budget(draws, of, options);
    const Log expected = run_case(of, {&of.plain, 1});
    EXPECT_TRUE(same_logs(run_case(of, of.varied), expected)) << to_string(of);
  } catch (const UnsupportedError& error) {
    const std::string message = error.what();
    EXPECT_NE(message.find("no single sum of gradients"), std::string::npos) << message << "\n"
                                                                             << to_string(of);
    return false;
  } catch (const std::exception& error) {
    ADD_FAILURE() << error.what() << "\n" << to_string(of);
  }
  return true;
}

TEST(RandomStrategies, ChangeNoBit) {
  const Seeds seeds(50);
  std::uint64_t ran = 0;
  for (std::uint64_t seed = seeds.from; seed < seeds.end(); ++seed) ran += run_seed(seed) ? 1 : 0;
  std::cout << ran << " of " << seeds.count << " draws ran; the others cannot be built\n";
}

}  // namespace
}  // namespace tessera::testing
