#include "src/build/order.h"

#include <fmt/format.h>

#include <algorithm>

#include "src/layout/enumerators.h"

namespace tessera {
namespace {

std::string name(const Layout& layout, const Use& use) {
  return fmt::format("{} of unit '{}'", name_of(use.pass), layout.units()[use.unit].name);
}

// What has happened to a unit so far within a microbatch.
struct Seen {
  int forward = 0;
  int backward = 0;
  bool open = false;
};

void check_use(const Layout& layout, const Use& use, IdVector<Seen>& seen, std::vector<Use>& open) {
  Seen& unit = seen[use.unit];
  if (use.edge == UseEdge::close) {
    if (open.empty() || open.back() != Use{use.unit, use.pass, UseEdge::open})
      throw UsageError(
          fmt::format("order: {} is closed but is not the innermost open use", name(layout, use)));
    open.pop_back();
    return;
  }
  if (use.edge == UseEdge::open) open.push_back(use);
  if (use.pass == Pass::forward) {
    ++unit.forward;
  } else if (unit.forward == 0) {
    throw UsageError(fmt::format("order: {} comes before any forward of it", name(layout, use)));
  }
  if (use.pass == Pass::backward) ++unit.backward;
}

void check_order(const Layout& layout, const std::vector<Use>& uses, StepKind kind) {
  const int units = layout.units().count();
  IdVector<Seen> seen(units);
  std::vector<Use> open;
  for (const Use& use : uses) {
    if (use.unit < 0 || use.unit >= units)
      throw UsageError(
          fmt::format("order: unit {} does not exist; the model has units 0 to {}", use.unit, units - 1));
    check_enumerator("order: the pass of a use", use.pass, Pass::backward);
    check_enumerator("order: the edge of a use", use.edge, UseEdge::close);
    check_use(layout, use, seen, open);
  }
  if (!open.empty())
    throw UsageError(fmt::format("order: {} is opened and never closed", name(layout, open.back())));
  if (kind == StepKind::evaluate) return;
  // Every gradient must be written once a microbatch: an update from an old one would be a silent error.
  for (FlatId id = 0; id < layout.flats().count(); ++id) {
    const Flat& flat = layout.flat(id);
    if (flat.trainable && seen[flat.unit].backward == 0)
      throw UsageError(fmt::format("order: unit '{}' has trainable parameters and no backward",
                                   layout.units()[flat.unit].name));
  }
}

}  // namespace

namespace {

// A trainer that owns its activations knows by itself whether it has any to make again.
bool recomputes(const StepSpec& spec, UnitId unit) {
  const IdVector<UnitGraph>& units = spec.activations.units;
  const ActivationChoice choice = spec.strategy.activations_of(unit);
  if (units.empty()) return choice.recomputes();
  return !units[unit].parts_in(Pass::recompute, choice).empty();
}

}  // namespace

std::vector<Use> default_order(int units, const StepSpec& spec) {
  std::vector<Use> order;
  order.reserve(3 * static_cast<std::size_t>(std::max(units, 0)));
  for (UnitId unit = 0; unit < units; ++unit) order.push_back({unit, Pass::forward});
  for (UnitId unit = units - 1; unit >= 0; --unit) {
    // The last unit's backward follows its forward at once: what it saved is still there.
    if (unit + 1 < units && recomputes(spec, unit)) order.push_back({unit, Pass::recompute});
    order.push_back({unit, Pass::backward});
  }
  return order;
}

PassTimes::PassTimes(PipelineSchedule schedule, const PipelineShape& shape, StepKind kind)
    : microbatches_(static_cast<std::size_t>(shape.microbatches)), split_(splits_backward(schedule)) {
  struct Rank {
    std::vector<ChunkPass> order;
    std::size_t next = 0;
    int free = 0;
  };
  IdVector<Rank> ranks(shape.ranks);
  for (int rank = 0; rank < shape.ranks; ++rank) {
    ranks[rank].order = pipeline_order(schedule, shape, rank);
    if (kind == StepKind::evaluate)
      std::erase_if(ranks[rank].order, [](const ChunkPass& pass) { return pass.pass != Pass::forward; });
  }
  const int last_chunk = shape.ranks * shape.chunks - 1;
  starts_.assign(kKinds * microbatches_ * static_cast<std::size_t>(last_chunk + 1), -1);
  // What a pass needs from another chunk; false where that has not run yet.
  const auto ready = [&](const ChunkPass& pass, int& at) {
    const bool forward = pass.pass == Pass::forward;
    if (pass.pass == Pass::weight_gradient) return true;
    if (pass.chunk == (forward ? 0 : last_chunk)) return true;
    const int needed = start(pass.chunk + (forward ? -1 : 1), pass.microbatch, pass.pass);
    if (needed < 0) return false;
    at = needed + duration(pass.pass);
    return true;
  };
  for (bool moved = true; moved;) {
    moved = false;
    for (Rank& rank : ranks)
      for (int at = 0; rank.next < rank.order.size() && ready(rank.order[rank.next], at); at = 0) {
        const ChunkPass& pass = rank.order[rank.next++];
        const int from = std::max(rank.free, at);
        starts_[this->at(pass.chunk, pass.microbatch, pass.pass)] = from;
        rank.free = from + duration(pass.pass);
        moved = true;
      }
  }
  for (const Rank& rank : ranks)
    if (rank.next < rank.order.size()) throw Error(fmt::format("schedule {} has a cycle", name_of(schedule)));
}

std::vector<int> PassTimes::starts(int chunk) const {
  const auto first = starts_.begin() + static_cast<std::ptrdiff_t>(at(chunk, 0, Pass::forward));
  std::vector<int> all(first, first + static_cast<std::ptrdiff_t>(kKinds * microbatches_));
  std::erase(all, -1);
  return all;
}

std::vector<Use> uses_of(const Layout& layout, const StepSpec& spec) {
  std::vector<Use> uses = spec.order;
  if (uses.empty()) uses = default_order(layout.units().count(), spec);
  check_order(layout, uses, spec.kind);
  if (spec.kind == StepKind::evaluate)
    std::erase_if(uses, [](const Use& use) { return use.pass != Pass::forward; });
  if (uses.empty()) throw UsageError("order: no use of any unit");
  return uses;
}

}  // namespace tessera
