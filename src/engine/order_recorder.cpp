#include <fmt/format.h>

#include "tessera/engine_options.h"

namespace tessera {

void OrderRecorder::begin(UnitId unit, Pass pass) {
  if (!open_.empty()) order_[open_.back()].edge = UseEdge::open;
  open_.push_back(order_.size());
  order_.push_back({unit, pass, UseEdge::whole});
}

void OrderRecorder::end(UnitId unit, Pass pass) {
  if (open_.empty())
    throw UsageError(
        fmt::format("OrderRecorder: end of {} of unit {}, and no use has begun", name_of(pass), unit));
  if (const Use& innermost = order_[open_.back()]; innermost.unit != unit || innermost.pass != pass)
    throw UsageError(fmt::format(
        "OrderRecorder: end of {} of unit {}, but the innermost use that has begun is {} of unit {}",
        name_of(pass), unit, name_of(innermost.pass), innermost.unit));
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
