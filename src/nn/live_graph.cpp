#include "src/nn/live_graph.h"

#include <algorithm>
#include <numeric>
#include <set>
#include <utility>

namespace tessera::nn {
namespace {

class Live {
 public:
  Live(const UnitGraph& whole, const std::vector<bool>& trained, bool input_gradient, bool makes_losses)
      : whole_(whole), trained_(trained), makes_losses_(makes_losses) {
    if (input_gradient) wanted_.insert(SharedValue::input_gradient);
  }

  LiveGraph run() {
    IdVector<bool> stays(whole_.parts.count(), true);
    for (int id = whole_.parts.count(); id-- > 0;) {
      const PartSpec& part = whole_.parts[id];
      if (!is_of_backward(part.pass)) continue;
      stays[id] = makes_wanted(part);
      if (stays[id])
        for (const ValueId read : part.reads) want(read);
    }
    want_what_is_made_again();
    for (int id = 0; id < whole_.parts.count(); ++id)
      if (const PartSpec& part = whole_.parts[id]; part.pass == Pass::recompute)
        stays[id] = std::ranges::any_of(part.writes, [&](ValueId value) { return is_wanted(value); });
    return remaining(stays);
  }

 private:
  std::vector<int> gradients_of(const PartSpec& part) const {
    std::vector<int> places;
    for (int place = 0; place < static_cast<int>(trained_.size()); ++place)
      if (trained_[static_cast<std::size_t>(place)] && part.writes_gradient(place)) places.push_back(place);
    return places;
  }

  bool makes_wanted(const PartSpec& part) const {
    if (!gradients_of(part).empty()) return true;
    if (makes_losses_ && part.pass == Pass::backward && part.reads_value(SharedValue::batch)) return true;
    return std::ranges::any_of(part.writes, [&](ValueId value) { return is_wanted(value); });
  }

  // A value, or one that it has bytes in common with.
  bool is_wanted(ValueId value) const {
    return std::ranges::any_of(wanted_, [&](ValueId other) { return whole_.overlap(value, other); });
  }

  void want(ValueId value) {
    if (!wanted_.insert(value).second) return;
    for (const ValueId made : whole_.exchanged_for(value)) want(whole_.values[made].exchanged);
  }

  // A selective recompute makes what is recomputable of what is saved, which then stays saved.
  void want_what_is_made_again() {
    const std::set<ValueId> kept = wanted_;
    for (const ValueId value : kept) {
      if (value < 0 || whole_.values[whole_.whole(value)].keep != Keep::recomputable) continue;
      for (const Pass pass : {Pass::recompute, Pass::forward})
        for (const PartSpec& part : whole_.parts) {
          if (part.pass != pass || !whole_.writes_some(part, value)) continue;
          for (const ValueId read : part.reads) want(read);
        }
    }
  }

  LiveGraph remaining(const IdVector<bool>& stays) const {
    LiveGraph live{.graph = whole_};
    live.graph.parts.clear();
    for (int id = 0; id < whole_.parts.count(); ++id) {
      const PartSpec& part = whole_.parts[id];
      if (!stays[id]) {
        live.dropped_flops += part.pass == Pass::backward ? part.flops : 0;
        continue;
      }
      PartSpec& left = live.graph.parts.emplace_back(part);
      if (is_of_backward(part.pass)) left.gradients = gradients_of(part);
      live.parts.push_back(id);
      live.has_backward |= part.pass == Pass::backward;
    }
    if (!live.has_backward) {
      live.graph.parts.push_back(
          {.name = "nothing", .pass = Pass::backward, .gradients = std::vector<int>()});
      live.parts.push_back(-1);
    }
    release_values(live.graph);
    return live;
  }

  void release_values(UnitGraph& graph) const {
    const auto made_in_backward = [&](ValueId value) {
      return std::ranges::any_of(graph.parts, [&](const PartSpec& part) {
        return is_of_backward(part.pass) && graph.writes_some(part, value);
      });
    };
    for (ValueId id = 0; id < graph.values.count(); ++id) {
      ValueSpec& value = graph.values[id];
      if (value.keep != Keep::pass && !is_wanted(id)) value.keep = Keep::pass;
      if (value.only_if_read && !is_wanted(id)) value.bytes = 0;
      // There is nothing left to be written over.
      if (value.over != kNoValue && graph.values[value.over].keep == Keep::pass &&
          !made_in_backward(value.over))
        value.over = kNoValue;
    }
  }

  const UnitGraph& whole_;
  const std::vector<bool>& trained_;
  const bool makes_losses_;
  std::set<ValueId> wanted_;
};

}  // namespace

LiveGraph live_graph(const UnitGraph& whole, const std::vector<bool>& trained, bool input_gradient,
                     bool makes_losses) {
  if (whole.forward_only) {
    LiveGraph all{.graph = whole, .parts = std::vector<int>(whole.parts.size())};
    std::iota(all.parts.begin(), all.parts.end(), 0);
    return all;
  }
  return Live(whole, trained, input_gradient, makes_losses).run();
}

}  // namespace tessera::nn
