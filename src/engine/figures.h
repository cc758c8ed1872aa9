// Units and options of an engine as names with values, in a fixed order: what ranks compare, and what decides
// the bits.
#pragma once

#include <fmt/format.h>

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tessera/layout.h"
#include "tessera/loss_scaler.h"
#include "tessera/numerics.h"
#include "tessera/optimizer.h"
#include "tessera/step_spec.h"

namespace tessera {

class Figures {
 public:
  template <class Value>
  void add(std::string_view name, const Value& value) {
    facts_.push_back({std::string(name), fmt::format("{}", value)});
  }
  const std::vector<NumericFact>& facts() const { return facts_; }
  std::vector<NumericFact> take() { return std::move(facts_); }

 private:
  std::vector<NumericFact> facts_;
};

void add_optimizer(Figures& figures, const Optimizer& optimizer);
void add_scaling(Figures& figures, const std::optional<LossScaleOptions>& scaling);
void add_units(Figures& figures, const Layout& layout);
void add_order(Figures& figures, const std::vector<Use>& order);

}  // namespace tessera
