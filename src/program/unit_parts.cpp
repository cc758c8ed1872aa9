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

// The value that a part of the unit, or another unit, has written, through all exchanges.
ValueId made_of(const UnitGraph& graph, ValueId value) {
  while (value >= 0 && graph.values[value].exchanged != kNoValue) value = graph.values[value].exchanged;
  return value;
}

// Finds, from what backward reads, the parts that make it again.
class Again {
 public:
  Again(const UnitGraph& graph, Recompute recompute) : graph_(graph), recompute_(recompute) {}

  std::vector<int> run() {
    for (const PartSpec& part : graph_.parts)
      if (part.pass == Pass::backward)
        for (const ValueId read : part.reads)
          if (const ValueId value = made_of(graph_, read);
              value >= 0 && graph_.values[value].keep != Keep::pass)
            need(value);
    // A part that recomputes from less reads only what was kept, so that it can run first.
    std::vector<int> parts(chosen_.begin(), chosen_.end());
    std::ranges::stable_partition(parts,
                                  [&](int part) { return graph_.parts[part].pass == Pass::recompute; });
    return parts;
  }

 private:
  bool there(ValueId value) const { return value < 0 || graph_.values[value].is_kept(recompute_); }

  void need(ValueId wanted) {
    const ValueId value = made_of(graph_, wanted);
    if (there(value) || graph_.values[value].bytes == 0) return;
    const int maker = maker_of(value);
    if (maker < 0 || !chosen_.insert(maker).second) return;
    for (const ValueId read : graph_.parts[maker].reads) need(read);
  }

  int maker_of(ValueId value) const {
    int forward = -1;
    for (int id = 0; id < graph_.parts.count(); ++id) {
      const PartSpec& part = graph_.parts[id];
      if (part.pass == Pass::backward || part.evaluation_only || !part.writes_value(value)) continue;
      if (part.pass == Pass::forward) forward = id;
      if (part.pass == Pass::recompute &&
          std::ranges::all_of(part.reads, [&](ValueId read) { return there(read); }))
        return id;
    }
    return forward;
  }

  const UnitGraph& graph_;
  const Recompute recompute_;
  std::set<int> chosen_;
};

}  // namespace

bool ValueSpec::is_kept(Recompute recompute) const {
  switch (keep) {
    case Keep::pass:
      return false;
    case Keep::recomputable:
      return recompute == Recompute::none;
    case Keep::saved:
      return recompute != Recompute::full;
  }
  return false;
}

std::vector<int> UnitGraph::parts_in(Pass pass, Recompute recompute, StepKind kind) const {
  if (pass != Pass::recompute) return all_of(*this, pass, kind);
  if (recompute == Recompute::full && keeps_more) return all_of(*this, Pass::forward, kind);
  return Again(*this, recompute).run();
}

std::vector<GraphStep> UnitGraph::steps_in(Pass pass, Recompute recompute, StepKind kind) const {
  const std::vector<int> running = parts_in(pass, recompute, kind);
  std::vector<GraphStep> steps;
  std::vector<std::vector<ValueId>> ahead(running.size() + 1);  // of the part there: what is exchanged
  IdVector<bool> placed(values.size());
  // An exchange comes behind the part that writes what it is made of; else one ahead of its first reader.
  const auto place = [&](auto&& self, ValueId value, std::size_t reader) -> void {
    if (value < 0 || values[value].exchanged == kNoValue || placed[value]) return;
    placed[value] = true;
    const ValueId source = made_of(*this, value);
    std::size_t at = reader > 0 ? reader - 1 : 0;
    for (std::size_t k = 0; k < reader; ++k)
      if (source >= 0 && parts[running[k]].writes_value(source)) at = k + 1;
    self(self, values[value].exchanged, at);
    ahead[at].push_back(value);
  };
  for (std::size_t k = 0; k < running.size(); ++k)
    for (const ValueId read : parts[running[k]].reads) place(place, read, k);
  for (std::size_t k = 0; k < running.size(); ++k) {
    for (const ValueId value : ahead[k]) steps.push_back({.value = value});
    steps.push_back({.part = running[k]});
  }
  return steps;
}

}  // namespace tessera
