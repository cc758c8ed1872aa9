#include <fmt/format.h>

#include "tessera/engine.h"

namespace tessera {

void OrderRecorder::begin(UnitId unit, Pass pass) {
  if (!open_.empty()) order_[open_.back()].edge = UseEdge::open;
  open_.push_back(order_.size());
  order_.push_back({unit, pass, UseEdge::whole});
}

void OrderRecorder::end(UnitId unit, Pass pass) {
  if (open_.empty() || order_[open_.back()].unit != unit || order_[open_.back()].pass != pass)
    throw UsageError(fmt::format("OrderRecorder: end of {} of unit {}, which is not the innermost use begun",
                                 name_of(pass), unit));
  const Use begun = order_[open_.back()];
  open_.pop_back();
  if (begun.edge == UseEdge::open) order_.push_back({unit, pass, UseEdge::close});
}

std::vector<Use> OrderRecorder::order() const {
  if (!open_.empty())
    throw UsageError(fmt::format("OrderRecorder: {} of unit {} has begun and not ended",
                                 name_of(order_[open_.back()].pass), order_[open_.back()].unit));
  return order_;
}

}  // namespace tessera
