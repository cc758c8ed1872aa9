// The fingerprint is honest: runs that have one have the same bits, and runs that differ in one number that
// matters do not have one. TESSERA_SEEDS=FROM:COUNT draws other pairs than the few of every test run.
#include <gtest/gtest.h>

#include <filesystem>
#include <functional>
#include <map>

#include "tessera/optimizer_fields.h"
#include "tessera/philox.h"
#include "tests/engine/recorded_runs.h"
#include "tests/program/random_strategy.h"
#include "tests/program/seeds.h"

namespace tessera::testing {
namespace {

constexpr std::uint64_t kPairs = 40;

// A run of the toy model. Gradients are a function of the microbatch, counted over all ranks.
struct ToyRun {
  std::vector<UnitSpec> units = toy_units(DType::fp32);
  EngineOptions options = toy_options(1, 3);
  int microbatches = 1;  // of a rank
  int salt = 0;          // of gradients: what the toy's compute depends on
};

// Of many magnitudes, so that the order of a sum shows; some beyond what clipping leaves.
float gradient_of(const ToyRun& run, int step, int microbatch, const GradientAt& at) {
  const PhiloxBlock bits =
      random_block(static_cast<std::uint64_t>(run.salt), static_cast<std::uint64_t>(step * 1000 + microbatch),
                   static_cast<std::uint64_t>(at.parameter * 100'000 + at.index));
  const float mantissa = static_cast<float>(static_cast<std::int32_t>(bits[0])) * 0x1p-31f;
  return std::ldexp(mantissa, static_cast<int>(bits[1] % 24) - 18);
}

struct Outcome {
  std::string fingerprint;
  RunHashes bits;
};

Outcome outcome_of(const ToyRun& run) {
  const Mesh& mesh = run.options.mesh;
  EngineOptions options = run.options;
  options.programs = {{.kind = StepKind::train, .microbatches = run.microbatches}};
  options.disk_directory = std::filesystem::temp_directory_path();
  options.compute = {{"the toy's gradients", std::to_string(run.salt)}};
  const Rounds rounds{.count = run.microbatches, .blocks = options.strategy.blocks};
  Outcome outcome;
  outcome.bits = on_ranks(mesh.world(), [&](const Communicator& world) {
                   Engine engine(world, run.units, options);
                   if (world.rank() == 0) outcome.fingerprint = fingerprint_of(engine.numerics());
                   engine.initialize(toy_fill());
                   History history;
                   for (int step = 0; step < 3; ++step) {
                     ToyStep how{.step = step, .microbatches = run.microbatches, .learning_rate = 0.03};
                     how.gradient = [&](const GradientAt& at) {
                       const auto number = rounds.number(mesh, mesh.data_rank(at.rank), at.microbatch);
                       return gradient_of(run, step, static_cast<int>(number), at);
                     };
                     engine.begin(StepKind::train, run.microbatches);
                     toy_uses(engine, how);
                     history.steps.push_back(engine.step(
                         {.learning_rate = 0.03, .weight = static_cast<double>(run.microbatches)}));
                   }
                   engine.finish_updates();
                   history.weights = read_everything(engine);
                   return history;
                 }).hashes();
  return outcome;
}

// ---- pairs that differ in one number ----

struct Change {
  const char* name;
  // False where the run has no place for it.
  std::function<bool(ToyRun&)> make;
};

// No scale changes what Lion makes of a gradient.
bool takes_signs(const ToyRun& run) {
  return std::holds_alternative<LionOptions>(run.options.optimizer.options);
}

// Moments in bf16 and signs are the same for most gradients that differ by rounding.
bool hides_rounding(const ToyRun& run) {
  return takes_signs(run) || run.options.optimizer.moment_type == DType::bf16;
}

// Makes a field of the optimizer's options another, where they have it.
Change field(const char* name, double value) {
  return {name, [=](ToyRun& run) {
            for (OptimizerField& of : fields_of(run.options.optimizer.options))
              if (of.name == name) {
                if (double* const* number = std::get_if<double*>(&of.value)) **number = value;
                if (bool* const* truth = std::get_if<bool*>(&of.value)) **truth = !**truth;
                return true;
              }
            return false;
          }};
}

const std::vector<Change>& changes() {
  static const std::vector<Change> all = {
      field("beta1", 0.8),
      field("beta2", 0.9),
      field("epsilon", 1e-3),
      field("weight_decay", 0.3),
      field("momentum", 0.7),
      field("nesterov", 0),
      {"another optimizer",
       [](ToyRun& run) {
         run.options.optimizer.options =
             takes_signs(run) ? OptimizerOptions(AdamOptions()) : OptimizerOptions(LionOptions());
         return true;
       }},
      {"the type of moments",
       [](ToyRun& run) {
         if (moments_of(run.options.optimizer.options) == 0) return false;
         DType& type = run.options.optimizer.moment_type;
         type = type == DType::fp32 ? DType::bf16 : DType::fp32;
         return true;
       }},
      {"a group's decay",
       [](ToyRun& run) {
         run.options.optimizer.groups[1].weight_decay = 0.2;
         return true;
       }},
      {"a group's learning rate",
       [](ToyRun& run) {
         run.options.optimizer.groups[1].learning_rate_factor = 0.25;
         return true;
       }},
      {"clipping",
       [](ToyRun& run) {
         if (takes_signs(run)) return false;
         run.options.clip.max_norm = run.options.clip.max_norm > 0 ? 0.0 : 0.01;
         return true;
       }},
      {"when a rank's microbatches are reduced",
       [](ToyRun& run) {
         if (run.microbatches < 2 || run.options.mesh.shard < 2 || hides_rounding(run)) return false;
         ReduceWhen& reduce = run.options.strategy.reduce;
         reduce = reduce == ReduceWhen::each ? ReduceWhen::last : ReduceWhen::each;
         return true;
       }},
      {"replicas instead of shards",
       [](ToyRun& run) {
         Mesh& mesh = run.options.mesh;
         if (run.microbatches < 2 || mesh.shard < 2 || mesh.replicate > 1 || hides_rounding(run))
           return false;
         if (run.options.strategy.reduce == ReduceWhen::last) return false;  // sums of ranks are so already
         std::swap(mesh.shard, mesh.replicate);
         run.options.strategy.offload.parameters = Space::device;
         return true;
       }},
      {"blocks of microbatches",
       [](ToyRun& run) {
         const Mesh& mesh = run.options.mesh;
         const int total = run.microbatches * mesh.shard;
         if (run.options.strategy.reduce == ReduceWhen::last || mesh.replicate > 1 || total < 4 ||
             total % 2 != 0 || hides_rounding(run))
           return false;
         run.options.strategy.blocks = 2;
         return true;
       }},
      {"ranks, of which each adds up its own",
       [](ToyRun& run) {
         if (run.microbatches < 4 || run.options.mesh.data_ranks() != 2 ||
             run.options.strategy.reduce != ReduceWhen::last || hides_rounding(run))
           return false;
         run.options.mesh.shard *= 2;
         run.microbatches /= 2;
         return true;
       }},
      {"the number of microbatches",
       [](ToyRun& run) {
         ++run.microbatches;
         return true;
       }},
      {"the type of parameters",
       [](ToyRun& run) {
         const bool fp32 = run.units[0].parameters[0].dtype == DType::fp32;
         run.units = toy_units(fp32 ? DType::bf16 : DType::fp32);
         return true;
       }},
      {"a tie",
       [](ToyRun& run) {
         run.units.back().parameters[0].tied_to = "";
         return true;
       }},
      {"a frozen parameter",
       [](ToyRun& run) {
         run.units[3].parameters[1].trainable = false;
         return true;
       }},
      {"a parameter's group",
       [](ToyRun& run) {
         run.options.optimizer.groups[1].learning_rate_factor = 0.5;
         run.units[3].parameters[1].group = 1;
         return true;
       }},
      {"the compute",
       [](ToyRun& run) {
         ++run.salt;
         return true;
       }},
  };
  return all;
}

ToyRun draw_run(Draws& draws) {
  ToyRun run;
  run.units = toy_units(draws.among<DType>({DType::fp32, DType::bf16}));
  run.options = toy_options(draws.pick(1, 3), 3);
  run.options.mesh.replicate = run.options.mesh.shard < 3 && draws.chance(25) ? 2 : 1;
  run.microbatches = draws.among<int>({1, 2, 3, 4, 4});
  run.options.optimizer.options = draws.among<OptimizerOptions>(
      {AdamWOptions{.weight_decay = 0.1}, AdamOptions{}, SgdOptions{.momentum = 0.9}, LionOptions{}});
  if (draws.chance(30)) run.options.optimizer.moment_type = DType::bf16;
  if (draws.chance(30)) run.options.clip.max_norm = 0.02;
  run.salt = draws.pick(0, 1000);
  draw_strategy(draws, run.options.strategy, run.options.mesh, static_cast<int>(run.units.size()), false);
  run.options.strategy.recompute = Recompute::none;  // the toy makes nothing again
  run.options.strategy.unit_activations.clear();
  run.options.strategy.reduce = draws.among<ReduceWhen>({ReduceWhen::each, ReduceWhen::last});
  return run;
}

TEST(Fingerprint, DiffersWhereOneNumberThatMattersDoes) {
  const Seeds seeds(kPairs);
  std::map<std::string, int> made;
  for (std::uint64_t seed = seeds.from; seed < seeds.end(); ++seed) {
    Draws draws(seed);
    const ToyRun run = draw_run(draws);
    ToyRun other = run;
    std::string name;
    for (bool changed = false; !changed;) {
      const Change& change = draws.among(changes());
      name = change.name;
      other = run;
      changed = change.make(other);
    }
    SCOPED_TRACE("seed " + std::to_string(seed) + ", " + name);
    const Outcome one = outcome_of(run), two = outcome_of(other);
    EXPECT_NE(one.bits.weights, two.bits.weights) << "the data do not show it";
    EXPECT_NE(one.fingerprint, two.fingerprint);
    ++made[name];
  }
  if (seeds.count >= 200) {
    EXPECT_EQ(made.size(), changes().size()) << "not every change was drawn";
  }
}

// ---- pairs that are spread otherwise ----

// Stage, prefetch, places of states and parameters, number of shards and, with blocks, of replicas: with as
// many microbatches in all.
TEST(Fingerprint, IsOneForWhateverChangesNoBit) {
  const Seeds seeds(kPairs);
  constexpr int kMicrobatches = 12;  // of all ranks
  for (std::uint64_t seed = seeds.from; seed < seeds.end(); ++seed) {
    Draws draws(seed);
    ToyRun run = draw_run(draws);
    const int blocks = draws.chance(50) ? 4 : 1;
    const auto draw_mesh = [&] {
      if (blocks == 1) return Mesh{.shard = draws.among<int>({1, 2, 3, 4, 6})};
      return draws.among<Mesh>(
          {{}, {.shard = 3}, {.replicate = 2}, {.replicate = 2, .shard = 3}, {.replicate = 4}});
    };
    const auto spread = [&](const Mesh& mesh) {
      ToyRun other = run;
      other.options.mesh = mesh;
      other.microbatches = kMicrobatches / mesh.data_ranks();
      draw_strategy(draws, other.options.strategy, other.options.mesh, static_cast<int>(run.units.size()),
                    false);
      other.options.strategy.recompute = Recompute::none;
      other.options.strategy.unit_activations.clear();
      other.options.strategy.reduce = ReduceWhen::each;
      other.options.strategy.blocks = blocks;
      return other;
    };
    const Mesh mesh = draw_mesh(), another = draw_mesh();
    SCOPED_TRACE("seed " + std::to_string(seed) + ", " + std::to_string(blocks) + " blocks, " +
                 to_string(mesh) + " and " + to_string(another));
    const Outcome one = outcome_of(spread(mesh)), two = outcome_of(spread(another));
    EXPECT_EQ(one.bits.weights, two.bits.weights);
    EXPECT_EQ(one.bits.norms, two.bits.norms);
    EXPECT_EQ(one.bits.losses, two.bits.losses);
    EXPECT_EQ(one.fingerprint, two.fingerprint);
  }
}

}  // namespace
}  // namespace tessera::testing
