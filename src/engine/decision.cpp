#include "src/engine/decision.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "kernels/gate_math.h"
#include "tessera/program.h"

namespace tessera {
namespace {

class Scalars {
 public:
  explicit Scalars(const DecisionInputs& inputs)
      : inputs_(inputs), numel_(static_cast<std::size_t>(inputs.program.scalars_numel)) {}

  int ranks() const { return static_cast<int>(inputs_.scalars.size() / numel_); }
  double at(int rank, int slot) const {
    return inputs_.scalars[static_cast<std::size_t>(rank) * numel_ + static_cast<std::size_t>(slot)];
  }
  double at(int rank, Scalar which) const { return at(rank, static_cast<int>(which)); }
  double sum(int slot) const {
    double total = 0;
    for (int rank = 0; rank < ranks(); ++rank) total += at(rank, slot);
    return total;
  }
  double sum(Scalar which) const { return sum(static_cast<int>(which)); }
  // What add_loss() added on the rank.
  LossSum loss_on_device(int rank) const { return sum_at<LossSum>(rank, kLossSlot); }
  // Of all parameters, or of one.
  SquareSum squares(ParameterId parameter) const {
    SquareSum total;
    for (int rank = 0; rank < ranks(); ++rank)
      kernels::exact::add(total, sum_at<SquareSum>(rank, square_sum_slot(parameter)));
    return total;
  }

 private:
  // A sum that came as so many values, as bits.
  template <class Sum>
  Sum sum_at(int rank, int slot) const {
    Sum sum;
    std::memcpy(static_cast<void*>(&sum),
                &inputs_.scalars[static_cast<std::size_t>(rank) * numel_ + static_cast<std::size_t>(slot)],
                sizeof(sum));
    return sum;
  }

  const DecisionInputs& inputs_;
  std::size_t numel_;
};

void check_agreement(const Scalars& scalars, IdSpan<const int> ranks, bool abandoned) {
  for (const AgreedScalar& agreed : kAgreedScalars) {
    // Whoever abandons a step knows no rate for it.
    if (abandoned && agreed.which == Scalar::learning_rate) continue;
    const double expected = scalars.at(0, agreed.which);
    for (int rank = 1; rank < scalars.ranks(); ++rank) {
      const double found = scalars.at(rank, agreed.which);
      if (std::bit_cast<std::uint64_t>(found) == std::bit_cast<std::uint64_t>(expected)) continue;
      const int culprit = ranks[rank];
      throw CommunicationError(fmt::format("rank {} has {} {}, rank {} has {}; all ranks must agree", culprit,
                                           agreed.name, found, ranks[0], expected),
                               culprit);
    }
  }
}

// The host's part was checked where it was given; what add_loss() added is known only here.
void check_weights(const Scalars& scalars, IdSpan<const int> ranks) {
  for (int rank = 0; rank < scalars.ranks(); ++rank)
    if (const double weight =
            scalars.at(rank, Scalar::weight) + static_cast<double>(scalars.loss_on_device(rank).counted);
        weight < 0)
      throw UsageError(
          fmt::format("step: rank {}'s weight is {} with what add_loss added; it must be 0 or more",
                      ranks[rank], weight));
}

// The parameter with the first element that is not finite; empty where all are.
std::string first_nonfinite(const Layout& layout, const SquareSum& squares) {
  const std::int64_t place = kernels::exact::first_nonfinite(squares);
  if (place < 0) return {};
  const IdVector<std::int64_t> firsts = first_places(layout);
  const auto flat = static_cast<FlatId>(std::ranges::upper_bound(firsts, place) - firsts.begin() - 1);
  const std::int64_t offset = place - firsts[flat];  // on whichever tensor rank
  const std::vector<Piece> found = layout.pieces(flat, offset, offset + 1);
  return found.empty() ? fmt::format("padding of flat {}", flat)
                       : layout.parameter(found.front().parameter).name;
}

}  // namespace

IdVector<std::int64_t> first_places(const Layout& layout) {
  IdVector<std::int64_t> places;
  std::int64_t next = 0;
  for (const Flat& flat : layout.flats()) {
    places.push_back(next);
    next += flat.padded_numel;
  }
  return places;
}

Decision decide(const DecisionInputs& inputs) {
  const Scalars scalars(inputs);
  const bool abandoned = scalars.sum(Scalar::abandoned) > 0;
  check_agreement(scalars, inputs.ranks, abandoned);
  check_weights(scalars, inputs.ranks);
  Decision decision;
  StepResult& result = decision.result;
  result.step = static_cast<std::int64_t>(scalars.at(0, Scalar::step));
  result.learning_rate = scalars.at(0, Scalar::learning_rate);
  result.loss_scale = scalars.at(0, Scalar::loss_scale);
  NumberSum loss, weight;
  for (int rank = 0; rank < scalars.ranks(); ++rank) {
    const LossSum on_device = scalars.loss_on_device(rank);
    kernels::exact::add(loss, scalars.at(rank, Scalar::loss));
    kernels::exact::add(loss, on_device.loss);
    kernels::exact::add(weight, scalars.at(rank, Scalar::weight));
    kernels::exact::add(weight, on_device.counted);
  }
  result.weight = kernels::exact::value_of(weight);
  result.loss = result.weight > 0 ? kernels::exact::value_of(loss) / result.weight : 0.0;
  if (abandoned) {
    result.reason = SkipReason::abandoned;
    return decision;
  }
  if (result.weight <= 0) {
    result.reason = SkipReason::no_weight;
    return decision;
  }
  if (inputs.program.kind == StepKind::evaluate) return decision;
  const SquareSum squares = scalars.squares(kAllParameters);
  const double square_sum = kernels::exact::value_of(squares);
  const double unscale = kernels::unscale_of(result.weight, result.loss_scale);
  result.gradient_norm = kernels::norm_of(square_sum, unscale);
  result.first_nonfinite = first_nonfinite(inputs.layout, squares);
  const kernels::UpdateGate gate =
      kernels::gate_of(false, result.weight, result.loss_scale, square_sum, inputs.clip.max_norm);
  if (gate.apply == 0) {
    result.reason = SkipReason::not_finite;
    return decision;
  }
  if (inputs.parameter_norms)
    for (ParameterId id = 0; id < inputs.layout.parameters(); ++id)
      result.parameter_norms.push_back(
          kernels::norm_of(kernels::exact::value_of(scalars.squares(inputs.layout.place(id).home)), unscale));
  decision.gradient_scale = gate.gradient_scale;
  return decision;
}

}  // namespace tessera
