// Which parts of a unit a pass runs.
#include <algorithm>
#include <set>

#include "tessera/activations.h"

namespace tessera {
namespace {

std::vector<int> all_of(const UnitGraph& graph, Pass pass) {
  std::vector<int> places;
  for (int part = 0; part < graph.parts.count(); ++part)
    if (graph.parts[part].pass == pass) places.push_back(part);
  return places;
}

// Finds, from what backward reads, the parts that make it again.
class Again {
 public:
  Again(const UnitGraph& graph, Recompute recompute) : graph_(graph), recompute_(recompute) {}

  std::vector<int> run() {
    for (const PartSpec& part : graph_.parts)
      if (part.pass == Pass::backward)
        for (const ValueId value : part.reads)
          if (value >= 0 && graph_.values[value].keep != Keep::pass) need(value);
    // A part that recomputes from less reads only what was kept, so that it can run first.
    std::vector<int> parts(chosen_.begin(), chosen_.end());
    std::ranges::stable_partition(parts,
                                  [&](int part) { return graph_.parts[part].pass == Pass::recompute; });
    return parts;
  }

 private:
  bool there(ValueId value) const { return value < 0 || graph_.values[value].is_kept(recompute_); }

  void need(ValueId value) {
    if (there(value) || graph_.values[value].bytes == 0) return;
    const int maker = maker_of(value);
    if (maker < 0 || !chosen_.insert(maker).second) return;
    for (const ValueId read : graph_.parts[maker].reads) need(read);
  }

  int maker_of(ValueId value) const {
    int forward = -1;
    for (int id = 0; id < graph_.parts.count(); ++id) {
      const PartSpec& part = graph_.parts[id];
      if (part.pass == Pass::backward || !part.writes_value(value)) continue;
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

std::vector<int> UnitGraph::parts_in(Pass pass, Recompute recompute) const {
  if (pass != Pass::recompute) return all_of(*this, pass);
  if (recompute == Recompute::full && keeps_more) return all_of(*this, Pass::forward);
  return Again(*this, recompute).run();
}

}  // namespace tessera
