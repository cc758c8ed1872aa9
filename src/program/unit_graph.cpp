#include <algorithm>

#include "src/program/shared_bytes.h"
#include "tessera/activations.h"

namespace tessera {

std::string_view name_of(Keep keep) {
  constexpr std::string_view kNames[] = {"pass", "recomputable", "saved", "cached"};
  return kNames[static_cast<int>(keep)];
}

std::string_view name_of(Held held) {
  constexpr std::string_view kNames[] = {"copied", "split", "partial"};
  return kNames[static_cast<int>(held)];
}

UnitGraph::UnitGraph(const UnitActivations& sizes) : output_bytes(sizes.output_bytes), keeps_more(true) {
  values = {{.name = "saved", .bytes = sizes.saved_bytes, .keep = Keep::saved},
            {.name = "recomputable", .bytes = sizes.recomputable_bytes, .keep = Keep::recomputable}};
  const auto add = [&](std::string name, Pass pass, std::vector<ValueId> reads, std::vector<ValueId> writes) {
    if (sizes.reads_batch) reads.insert(reads.begin(), SharedValue::batch);
    parts.push_back({.name = std::move(name),
                     .pass = pass,
                     .reads = std::move(reads),
                     .writes = std::move(writes),
                     .workspace_bytes = sizes.workspace_bytes});
  };
  add("forward", Pass::forward, {SharedValue::input}, {SharedValue::output, kSaved, kRecomputable});
  add("again", Pass::recompute, {SharedValue::input, kSaved}, {kRecomputable});
  const std::vector<ValueId> kept = {SharedValue::input, kSaved, kRecomputable, SharedValue::output_gradient};
  if (sizes.splits_backward) {
    add("backward", Pass::backward, kept, {SharedValue::input_gradient});
    add("weight gradient", Pass::weight_gradient, kept, {});
  } else {
    add("backward", Pass::backward, kept, {kRecomputable, SharedValue::input_gradient});
  }
}

bool PartSpec::reads_value(ValueId value) const { return std::ranges::find(reads, value) != reads.end(); }

bool PartSpec::writes_value(ValueId value) const { return std::ranges::find(writes, value) != writes.end(); }

bool PartSpec::writes_gradient(int place) const {
  return is_of_backward(pass) && (!gradients || std::ranges::find(*gradients, place) != gradients->end());
}

bool UnitGraph::reads_batch() const {
  return std::ranges::any_of(parts,
                             [](const PartSpec& part) { return part.reads_value(SharedValue::batch); });
}

std::int64_t UnitGraph::bytes(Keep keep) const {
  std::int64_t sum = 0;
  for (const ValueSpec& value : values)
    sum += value.keep == keep && value.over == kNoValue && value.piece_of == kNoValue ? value.bytes : 0;
  return sum;
}

double UnitGraph::flops(Pass pass) const {
  double sum = 0;
  for (const PartSpec& part : parts) sum += part.pass == pass ? part.flops : 0;
  return sum;
}

std::int64_t UnitGraph::workspace_bytes() const {
  std::int64_t most = 0;
  for (const PartSpec& part : parts) most = std::max(most, part.workspace_bytes);
  return most;
}

ValueId UnitGraph::root(ValueId value) const {
  for (value = whole(value); value >= 0 && values[value].over != kNoValue;) value = values[value].over;
  return value;
}

ValueId UnitGraph::whole(ValueId value) const {
  return value >= 0 && values[value].piece_of != kNoValue ? values[value].piece_of : value;
}

std::vector<ValueId> UnitGraph::pieces(ValueId value) const {
  std::vector<ValueId> all;
  for (ValueId id = 0; id < values.count(); ++id)
    if (values[id].piece_of == value) all.push_back(id);
  return all;
}

bool UnitGraph::overlap(ValueId one, ValueId other) const {
  if (whole(one) != whole(other)) return false;
  return one == other || whole(one) == one || whole(other) == other ||
         share_bytes(values[one], values[other]);
}

bool UnitGraph::writes_some(const PartSpec& part, ValueId value) const {
  return std::ranges::any_of(part.writes, [&](ValueId written) { return overlap(written, value); });
}

std::vector<ValueId> UnitGraph::exchanged_for(ValueId value) const {
  std::vector<ValueId> made;
  for (ValueId id = 0; id < values.count(); ++id)
    if (values[id].exchanged != kNoValue && overlap(id, value)) made.push_back(id);
  return made;
}

ValueId UnitGraph::source(ValueId value) const {
  while (value >= 0 && values[value].exchanged != kNoValue) value = values[value].exchanged;
  return value;
}

bool UnitGraph::has_exchanges() const {
  return std::ranges::any_of(values, [](const ValueSpec& value) { return value.exchanged != kNoValue; });
}

}  // namespace tessera
