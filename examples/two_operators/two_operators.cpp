// Inter-operator parallelism by hand: two matrix products, each on a rank of its own. Rank 0 has A and
// computes h = A·x, rank 1 has B and computes y = B·h; h goes one way, its gradient the other, while the next
// rows follow.
//
//   rank 0   A·x₀  A·x₁  ┌ dA₀   A·x₂   dA₁   ...
//              └──h₀──┐  └──dh₀─┐
//   rank 1           B·h₀ dB₀  B·h₁  dB₁   ...
//
// The trainer owns its compute; the engine says what comes next on this rank, and brings what the other has
// made. The same function on one rank gives the same losses, bit for bit.
//   two_operators [STEPS]
#include <cstdio>
#include <exception>
#include <string>
#include <vector>

#include "../arguments.h"
#include "tessera/engine.h"
#include "tessera/memory_plan.h"
#include "tessera/program.h"

namespace {

using namespace tessera;

constexpr char kUsage[] = "usage: two_operators [STEPS]\n";
constexpr std::int64_t kRows = 16, kInputs = 24, kHidden = 32;  // of a microbatch
constexpr int kMicrobatches = 4;
constexpr UnitId kA = 0, kB = 1;  // A [hidden, inputs], B [1, hidden]

EngineOptions engine_options(int ranks) {
  EngineOptions options;
  options.mesh.pipeline = ranks;
  options.programs[0].microbatches = kMicrobatches;
  // What goes from the first operator to the second, in bytes: this is all of the activations that the engine
  // keeps.
  options.programs[0].activations.units = {UnitActivations{.output_bytes = kRows * kHidden * 4},
                                           UnitActivations{}};
  options.optimizer.options = SgdOptions{.momentum = 0.9};
  return options;
}

// Input k of row `row`, and the target: a linear function of the inputs.
float input(std::int64_t row, std::int64_t k) {
  return static_cast<float>((row * 37 + k * 11 + row * k) % 23 - 11) / 11.0f;
}
float target(std::int64_t row) {
  float sum = 0;
  for (std::int64_t k = 0; k < kInputs; ++k) sum += input(row, k) * static_cast<float>(k % 5 - 2) / 5.0f;
  return sum;
}

// h = A·x, or from its gradient that of A.
void operator_a(Pass pass, std::int64_t first_row, UnitLease& lease, float* h, const float* h_gradient) {
  const auto* a = static_cast<const float*>(lease.parameter(kA).data);
  if (pass == Pass::forward) {
    for (std::int64_t row = 0; row < kRows; ++row)
      for (std::int64_t j = 0; j < kHidden; ++j) {
        float sum = 0;
        for (std::int64_t k = 0; k < kInputs; ++k) sum += a[j * kInputs + k] * input(first_row + row, k);
        h[row * kHidden + j] = sum;
      }
    return;
  }
  const std::span<float> gradient = lease.gradient(kA).as<float>();
  for (std::int64_t j = 0; j < kHidden; ++j)
    for (std::int64_t k = 0; k < kInputs; ++k) {
      float sum = 0;
      for (std::int64_t row = 0; row < kRows; ++row)
        sum += h_gradient[row * kHidden + j] * input(first_row + row, k);
      gradient[static_cast<std::size_t>(j * kInputs + k)] += sum;
    }
}

// y = B·h and the squared error, from which both gradients; returns the sum of errors.
double operator_b(std::int64_t first_row, UnitLease& lease, const float* h, float* h_gradient) {
  const auto* b = static_cast<const float*>(lease.parameter(kB).data);
  const std::span<float> gradient = lease.gradient(kB).as<float>();
  double loss = 0;
  for (std::int64_t row = 0; row < kRows; ++row) {
    float y = 0;
    for (std::int64_t j = 0; j < kHidden; ++j) y += b[j] * h[row * kHidden + j];
    const float error = y - target(first_row + row);
    loss += 0.5 * error * error;
    for (std::int64_t j = 0; j < kHidden; ++j) {
      gradient[static_cast<std::size_t>(j)] += error * h[row * kHidden + j];
      h_gradient[row * kHidden + j] = error * b[j];
    }
  }
  return loss;
}

StepResult train_step(Engine& engine) {
  engine.begin(StepKind::train, kMicrobatches);
  double loss = 0;
  std::int64_t rows = 0;
  for (const Instruction& use : engine.running().instructions) {  // this rank's, in its order
    if (use.op != Opcode::use) continue;
    UnitLease lease = engine.use(use.unit, use.pass);
    const std::int64_t first_row = use.microbatch * kRows;
    const auto at = [&](Role role) { return static_cast<float*>(lease.address(role)); };
    if (use.unit == kA) {  // h is its output, and the other operator's input
      operator_a(use.pass, first_row, lease, at(Role::output), at(Role::output_gradient));
    } else if (use.pass == Pass::backward) {  // its forward is part of this
      loss += operator_b(first_row, lease, at(Role::input), at(Role::input_gradient));
      rows += kRows;
    }
    lease.end();
  }
  return engine.step({.learning_rate = 0.02, .weight = static_cast<double>(rows), .loss = loss});
}

// The losses that all ranks see.
std::vector<double> train(int ranks, int steps) {
  std::vector<double> losses;
  run_local(ranks, {}, [&](Communicator world) {
    Engine engine(world,
                  {{.name = "A", .parameters = {{.name = "a", .shape = {kHidden, kInputs}}}},
                   {.name = "B", .parameters = {{.name = "b", .shape = {1, kHidden}}}}},
                  engine_options(ranks));
    engine.initialize([](ParameterId parameter, std::int64_t begin, std::span<float> values) {
      for (std::size_t k = 0; k < values.size(); ++k)
        values[k] = static_cast<float>((begin + static_cast<std::int64_t>(k)) * 29 % 31 - 15) /
                    (parameter == kA ? 90.0f : 60.0f);
    });
    for (int step = 0; step < steps; ++step) {
      const StepResult result = train_step(engine);
      if (world.rank() == 0) losses.push_back(result.loss);
    }
    if (world.rank() == 0)
      std::printf("%d rank%s: loss %.6f -> %.6f; rank 0 has %lld bytes of states\n", ranks,
                  ranks == 1 ? "" : "s", losses.front(), losses.back(),
                  static_cast<long long>(engine.plan().space(Space::device).persistent_bytes));
  });
  return losses;
}

}  // namespace

int main(int argc, char** argv) try {
  if (const auto status = examples::shows_usage(argc, argv, 0, 1, kUsage)) return *status;
  const int steps = argc > 1 ? examples::whole_number("STEPS", argv[1], 1, 1'000'000) : 200;
  const std::vector<double> alone = train(1, steps), apart = train(2, steps);
  if (alone != apart) {
    std::fprintf(stderr, "two_operators: the losses differ\n");
    return 1;
  }
  std::puts("the same losses, bit for bit");
  return 0;
} catch (const UsageError& error) {
  std::fprintf(stderr, "two_operators: %s\n%s", error.what(), kUsage);
  return 2;
} catch (const std::exception& error) {
  std::fprintf(stderr, "two_operators: %s\n", error.what());
  return 1;
}
