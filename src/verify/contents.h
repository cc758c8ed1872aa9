// What the buffers of one program hold while it is followed: a term for each part of a flat that ranks can
// tell apart; one for any other buffer, or for each stretch of it that pieces of values cut.
#pragma once

#include <algorithm>
#include <vector>

#include "src/program/pieces.h"
#include "src/verify/terms.h"
#include "tessera/layout.h"

namespace tessera {

// The axes along which flats are cut.
inline constexpr Axis kCuts[] = {Axis::shard, Axis::replicate, Axis::tensor};

// A flat has a cell for each set of these axes: this rank's own part, and the parts of its peers along one
// axis, two or all. In each, one term for every parameter of the flat, and the last for the gaps between
// them.
inline constexpr int kCells = 8;
constexpr int cell_bit(Axis axis) { return axis == Axis::shard ? 2 : axis == Axis::replicate ? 1 : 4; }
class Contents {
 public:
  // `ranks`: the axes along which there are peers.
  Contents(const Program& program, const Layout& layout, AxisSet ranks)
      : program_(program),
        layout_(layout),
        ranks_(ranks),
        stretches_(stretches_of(program)),
        cells_(ranks.contains(Axis::tensor) ? kCells : cell_bit(Axis::tensor)) {
    for (BufferId id = 0; id < program.buffers.count(); ++id) {
      const FlatId flat = program.buffers[id].flat;
      terms_.emplace_back(flat < 0 ? static_cast<int>(stretches_[id].size()) : cells_ * items(flat));
    }
    lives_.assign(program.buffers.size(), -1);
  }

  // The axes along which peers have other parts of the flat's elements.
  AxisSet ranks_of(FlatId flat) const {
    return layout_.flat(flat).over == TensorShare::cut ? ranks_.without(Axis::tensor) : ranks_;
  }
  int cells() const { return cells_; }
  // Whether a buffer of the flat with this spread holds the cell on this rank.
  bool has_cell(FlatId flat, const Spread& spread, int cell) const {
    const AxisSet ranks = ranks_of(flat);
    for (const Axis axis : kCuts)
      if ((cell & cell_bit(axis)) != 0 && (spread.axes.contains(axis) || !ranks.contains(axis))) return false;
    return true;
  }

  // Terms in a cell of the flat, and the place of its gaps among them.
  int items(FlatId flat) const { return static_cast<int>(layout_.flat(flat).parameters.size()) + 1; }
  int gaps(FlatId flat) const { return items(flat) - 1; }
  // The place of a parameter among its flat's.
  int item(ParameterId parameter) const {
    const Place& place = layout_.place(parameter);
    const std::vector<ParameterId>& all = layout_.flat(place.flat).parameters;
    return static_cast<int>(std::ranges::lower_bound(all, place.home) - all.begin());
  }

  // To be called before `at` touches the buffer: forgets its contents if a new lifetime has begun.
  void enter(BufferId buffer, InstructionId at) {
    const Buffer& of = program_.buffers[buffer];
    const int life = of.persistent ? 0 : lifetime_at(of, at);
    if (life == lives_[buffer] && life >= 0) return;
    if (!of.persistent) terms_[buffer].assign(terms_[buffer].size(), kUndefined);
    lives_[buffer] = life;
  }
  // Calls visit(term, cell, item) for all that a spread has of the buffer's flat.
  template <class Visit>
  void each(BufferId buffer, const Spread& spread, Visit visit) {
    const FlatId flat = program_.buffers[buffer].flat;
    for (int cell = 0; cell < cells_; ++cell) {
      if (!has_cell(flat, spread, cell)) continue;
      for (int k = 0; k < items(flat); ++k) visit(at(buffer, cell, k), cell, k);
    }
  }
  // Says which value's bytes a buffer that belongs to no flat has in the region, or in all of it. kUndefined
  // where these are not all of one value.
  Term held(BufferId buffer, const Region& region = {}) const {
    Term found = kUndefined;
    bool first = true;
    each_stretch(buffer, region, [&](int at) {
      const Term term = terms_[buffer][at];
      found = first || term == found ? term : kUndefined;
      first = false;
    });
    return found;
  }
  void hold(BufferId buffer, Term value, const Region& region = {}) {
    each_stretch(buffer, region, [&](int at) { terms_[buffer][at] = value; });
  }
  Term& at(BufferId buffer, int cell, int item) {
    return terms_[buffer][place(program_.buffers[buffer].flat, cell, item)];
  }
  // Where the term stands among all of the flat's.
  int place(FlatId flat, int cell, int item) const { return cell * items(flat) + item; }

 private:
  // Calls visit(at) for the places of the buffer's stretches that the region has.
  template <class Visit>
  void each_stretch(BufferId buffer, const Region& region, Visit visit) const {
    int at = 0;
    for (const Stretch& stretch : stretches_[buffer]) {
      if (region.meets(stretch.begin, stretch.end)) visit(at);
      ++at;
    }
  }

  const Program& program_;
  const Layout& layout_;
  const AxisSet ranks_;
  const IdVector<std::vector<Stretch>> stretches_;
  const int cells_;
  IdVector<IdVector<Term>> terms_;
  IdVector<int> lives_;
};

}  // namespace tessera
