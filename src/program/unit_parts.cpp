// Which parts of a unit a pass runs.
#include <algorithm>
#include <set>

#include "tessera/activations.h"

namespace tessera {
namespace {

bool runs_in(const PartSpec& part, StepKind kind) {
  return !part.evaluation_only || kind == StepKind::evaluate;
}

std::vector<int> all_of(const UnitGraph& graph, Pass pass, StepKind kind) {
  std::vector<int> places;
  for (int part = 0; part < graph.parts.count(); ++part)
    if (graph.parts[part].pass == pass && runs_in(graph.parts[part], kind)) places.push_back(part);
  return places;
}

// Calls visit for each of the unit's own values that this one is, or is made of, through all exchanges.
template <class Visit>
void each_source(const UnitGraph& graph, ValueId value, const Visit& visit) {
  if (graph.whole(value) >= 0) visit(value);
  for (const ValueId made : graph.exchanged_for(value))
    each_source(graph, graph.values[made].exchanged, visit);
}

// Finds, from what backward reads, the parts that make it again.
class Again {
 public:
  Again(const UnitGraph& graph, const ActivationChoice& choice) : graph_(graph), choice_(choice) {}

  std::vector<int> run() {
    for (const PartSpec& part : graph_.parts)
      if (part.pass == Pass::backward || (part.pass == Pass::weight_gradient && graph_.is_split))
        for (const ValueId read : part.reads)
          each_source(graph_, read, [&](ValueId value) {
            if (graph_.values[graph_.whole(value)].keep != Keep::pass) need(value);
          });
    // A part that recomputes from less reads only what was kept, so that it can run first.
    std::vector<int> parts(chosen_.begin(), chosen_.end());
    std::stable_partition(parts.begin(), parts.end(),
                          [&](int part) { return graph_.parts[part].pass == Pass::recompute; });
    return parts;
  }

 private:
  bool there(ValueId value) const { return graph_.whole(value) < 0 || graph_.is_kept(value, choice_); }

  void need(ValueId value) {
    if (there(value)) return;
    for (const ValueId made : graph_.exchanged_for(value)) need(graph_.values[made].exchanged);
    if (graph_.values[value].bytes == 0) return;
    for (const int maker : makers_of(value))
      if (chosen_.insert(maker).second)
        for (const ValueId read : graph_.parts[maker].reads) need(read);
  }

  // The parts that write it, or pieces of it: from less where all that is there.
  std::vector<int> makers_of(ValueId value) const {
    std::vector<int> forward, again;
    for (int id = 0; id < graph_.parts.count(); ++id) {
      const PartSpec& part = graph_.parts[id];
      if (is_of_backward(part.pass) || part.evaluation_only || !graph_.writes_some(part, value)) continue;
      if (part.pass == Pass::forward) forward.push_back(id);
      if (part.pass == Pass::recompute &&
          std::ranges::all_of(part.reads, [&](ValueId read) { return there(read); }))
        again.push_back(id);
    }
    return again.empty() ? forward : again;
  }

  const UnitGraph& graph_;
  const ActivationChoice& choice_;
  std::set<int> chosen_;
};

}  // namespace

UnitGraph split_backward(const UnitGraph& graph) {
  UnitGraph split = graph;
  for (const PartSpec& apart : graph.parts) {
    if (apart.pass != Pass::weight_gradient) continue;
    split.is_split = true;
    for (PartSpec& part : split.parts) {
      if (part.pass != Pass::backward) continue;
      if (!apart.gradients) part.gradients.emplace();
      if (part.gradients && apart.gradients)
        for (const int place : *apart.gradients) std::erase(*part.gradients, place);
    }
  }
  for (PartSpec& part : split.parts) {
    if (part.pass != Pass::backward || (part.gradients && part.gradients->empty())) continue;
    // What such a part reads no part of backward behind it may change.
    const auto changes = [&](const PartSpec& later) {
      return later.pass == Pass::backward &&
             std::ranges::any_of(part.reads, [&](ValueId read) { return split.writes_some(later, read); });
    };
    const auto behind = split.parts.begin() + (&part - split.parts.data()) + 1;
    if (!part.writes.empty() || std::any_of(behind, split.parts.end(), changes)) return graph;
    part.pass = Pass::weight_gradient;
    split.is_split = true;
  }
  std::set<ValueId> needed;
  for (const PartSpec& part : split.parts)
    if (part.pass == Pass::weight_gradient)
      for (const ValueId read : part.reads)
        each_source(split, read, [&](ValueId value) { needed.insert(split.whole(value)); });
  for (ValueSpec& value : split.values)
    if (needed.contains(value.over)) value.over = kNoValue;
  return split;
}

bool UnitGraph::is_kept(ValueId value, const ActivationChoice& choice) const {
  const ValueId id = whole(value);
  return values[id].is_kept(choice.recompute) && !std::ranges::binary_search(choice.again, id);
}

bool ValueSpec::is_kept(Recompute recompute) const {
  switch (keep) {
    case Keep::pass:
    case Keep::cached:
      return false;
    case Keep::recomputable:
      return recompute == Recompute::none;
    case Keep::saved:
      return recompute != Recompute::full;
  }
  return false;
}

std::vector<int> UnitGraph::parts_in(Pass pass, const ActivationChoice& choice, StepKind kind) const {
  if (pass == Pass::weight_gradient && !is_split) return {};
  if (pass != Pass::recompute) return all_of(*this, pass, kind);
  if (choice.recompute == Recompute::full && keeps_more) return all_of(*this, Pass::forward, kind);
  return Again(*this, choice).run();
}

std::vector<GraphStep> UnitGraph::steps_in(Pass pass, const ActivationChoice& choice, StepKind kind) const {
  const std::vector<int> running = parts_in(pass, choice, kind);
  std::vector<GraphStep> steps;
  std::vector<std::vector<ValueId>> ahead(running.size() + 1);  // of the part there: what is exchanged
  IdVector<bool> placed(values.size());
  // An exchange comes behind the part that writes what it is made of; else one part ahead of its first reader
  // or, of pieces of one value, two for each.
  const auto place = [&](auto&& self, ValueId read, std::size_t reader) -> void {
    const std::vector<ValueId> made = exchanged_for(read);
    for (std::size_t i = 0; i < made.size(); ++i) {
      const ValueId value = made[i];
      if (placed[value]) continue;
      placed[value] = true;
      const ValueId of = values[value].exchanged, made_of = source(value);
      const std::size_t pieces = made.size() - i;
      std::size_t at = reader - std::min(reader, made.size() > 1 ? 2 * pieces : pieces);
      for (std::size_t k = 0; k < reader; ++k)
        if (whole(made_of) >= 0 && writes_some(parts[running[k]], made_of)) at = k + 1;
      self(self, of, at);
      // One that is read sooner and comes within two parts goes first: they travel one after the other.
      for (std::size_t next = std::min(at + 2, reader); next > at; --next)
        if (!ahead[next].empty()) at = next;
      ahead[at].push_back(value);
    }
  };
  // Weight gradients find what backward's exchanges made.
  if (pass == Pass::weight_gradient)
    for (const GraphStep& before : steps_in(Pass::backward, choice, kind))
      if (before.value != kNoValue) placed[before.value] = true;
  for (std::size_t k = 0; k < running.size(); ++k)
    for (const ValueId read : parts[running[k]].reads) place(place, read, k);
  for (std::size_t k = 0; k < running.size(); ++k) {
    for (const ValueId value : ahead[k]) steps.push_back({.value = value});
    steps.push_back({.part = running[k]});
  }
  return steps;
}

}  // namespace tessera
