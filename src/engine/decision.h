// The step's decision: from every rank's scalars to apply or skip, with which factor. Pure, the same on all
// ranks because all compute it from the same bytes in the same order.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "tessera/engine.h"
#include "tessera/program.h"

namespace tessera {

// Places in a rank's slot of the scalars, before the exact sums (see kLossSlot).
enum class Scalar : int { loss, weight, step, learning_rate, abandoned, hash_low, hash_high, loss_scale };
static_assert(kLossSlot == static_cast<int>(Scalar::loss_scale) + 1);
inline constexpr int kHostScalars = kLossSlot;

inline double& scalar(std::span<double> slot, Scalar which) { return slot[static_cast<std::size_t>(which)]; }
inline double scalar(std::span<const double> slot, Scalar which) {
  return slot[static_cast<std::size_t>(which)];
}

// What must be the same on all ranks, in the order in which a difference is looked for.
struct AgreedScalar {
  Scalar which;
  const char* name;
};
inline constexpr AgreedScalar kAgreedScalars[] = {{Scalar::hash_low, "program"},
                                                  {Scalar::hash_high, "program"},
                                                  {Scalar::step, "step"},
                                                  {Scalar::learning_rate, "learning rate"},
                                                  {Scalar::loss_scale, "loss scale"}};
// As bits.
constexpr std::uint32_t agreed_scalars() {
  std::uint32_t bits = 0;
  for (const AgreedScalar& agreed : kAgreedScalars) bits |= 1U << static_cast<int>(agreed.which);
  return bits;
}

struct Decision {
  StepResult result;            // all but `step` and `applied` of an update that is yet to run
  double gradient_scale = 0.0;  // clip factor / (loss scale · total weight); what the update multiplies by
};

struct DecisionInputs {
  const Layout& layout;
  IdSpan<const int> ranks;  // as messages name them: of the world that the engine's is a group of
  const Program& program;
  const GradientClip& clip;
  bool parameter_norms = false;
  std::span<const double> scalars;  // [rank][Program::scalars_numel]
};

// Elements of gradients are counted through all flats, in their order: [flat] the place of its first.
IdVector<std::int64_t> first_places(const Layout& layout);

// Losses, weights and squares are added exactly. Throws CommunicationError naming the first
// rank that differs from rank 0 in what they are to agree on, and both values.
Decision decide(const DecisionInputs& inputs);

}  // namespace tessera
