#include "src/nn/blocked_graph.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "kernels/reduce.h"
#include "src/nn/support.h"
#include "tessera/error.h"

namespace tessera::nn {
namespace {

// Whether each of several ranks makes a part of the gradient of a parameter that all of them have.
bool in_parts(const ParameterSpec& parameter) {
  return parameter.trainable && parameter.cut.dim < 0 && parameter.gradient == GradientOver::partial;
}

std::int64_t scratch_bytes(int contributions, std::int64_t numel) {
  return kernels::balanced_scratch(contributions) * numel * bytes_of(DType::fp32);
}

}  // namespace

BlockedGraph::BlockedGraph(const UnitGraph& inner, const std::vector<ParameterSpec>& parameters, int blocks,
                           int ranks)
    : inner_(inner), parameters_(parameters), blocks_(blocks), ranks_(ranks) {
  graph_.output_bytes = inner.output_bytes * own();
  graph_.keeps_more = inner.keeps_more;
  graph_.forward_only = inner.forward_only;
  inner.check("a tensor block", blocks);
  check_aliases();
  place_values();
  place_gradients();
  place_parts();
  keep_what_is_read();
}

ValueId BlockedGraph::add(ValueSpec value) {
  graph_.values.push_back(std::move(value));
  return graph_.values.count() - 1;
}

// Which inner values' blocks must follow each other without a gap: those that an exchange takes, or that lie
// in the memory of one. The others begin at aligned places.
IdVector<bool> BlockedGraph::in_a_row() const {
  IdVector<bool> result(inner_.values.count(), false);
  for (const ValueSpec& value : inner_.values)
    if (value.exchanged >= 0) result[inner_.root(value.exchanged)] = true;
  return result;
}

void BlockedGraph::place_values() {
  lies_.resize(inner_.values.size());
  sums_ = IdVector<ValueId>(inner_.values.count(), kNoValue);
  const IdVector<bool> rows = in_a_row();
  const auto lies = [&](ValueId id) { return id < 0 ? id : lies_[id].in; };
  for (ValueId id = 0; id < inner_.values.count(); ++id) {
    ValueSpec value = inner_.values[id];
    const ValueId of = value.exchanged;
    if (of >= 0 && own() > 1 && inner_.values[of].held == Held::split &&
        lies_[of].stride != inner_.values[of].bytes)
      throw UsageError(
          fmt::format("value '{}' of a block is exchanged, and shares memory with one of other size",
                      inner_.values[of].name));
    if (of != kNoValue && value.held == Held::copied) {
      // Alone, a rank has all parts, one behind the other.
      value.exchanged = lies(of);
      lies_[id] = {.in = ranks_ > 1 ? add(value) : value.exchanged};
    } else if (of != kNoValue) {
      lies_[id].stride = value.bytes;
      lies_[id].in = sums_[of];
      if (ranks_ == 1) continue;
      value.bytes *= own();
      value.exchanged = sums_[of] != kNoValue ? sums_[of] : lies(of);
      lies_[id].in = add(std::move(value));
    } else {
      const bool sums = value.held == Held::partial && (own() > 1 || value.type != DType::fp32);
      const ValueId root = inner_.root(id);
      const std::int64_t bytes = inner_.values[root].bytes;
      lies_[id].stride = rows[root] ? bytes : round_up(bytes, kAlignmentBytes);
      if (value.bytes > 0) value.bytes += (own() - 1) * lies_[id].stride;
      if (value.over != kNoValue) value.over = lies(value.over);
      ValueSpec sum = {.name = value.name + ".own",
                       .bytes = numel_of_sum(id) * bytes_of(DType::fp32),
                       .keep = value.keep,
                       .held = ranks_ > 1 ? Held::partial : Held::copied};
      if (sums) value.held = Held::split;
      lies_[id].in = add(std::move(value));
      if (sums) sums_[id] = add(std::move(sum));
    }
  }
}

// Several ranks read a copy that an exchange has made of a value, in each pass anew; a rank alone reads the
// value itself.
void BlockedGraph::check_aliases() const {
  if (ranks_ > 1) return;
  for (ValueId id = 0; id < inner_.values.count(); ++id) {
    const ValueId of = inner_.values[id].exchanged;
    if (of < 0 || inner_.values[id].held != Held::copied) continue;
    for (const bool backward : {false, true}) {
      bool read = false, changed = false;
      for (const PartSpec& part : inner_.parts) {
        if (is_of_backward(part.pass) != backward) continue;
        if (changed && part.reads_value(id))
          throw UsageError(
              fmt::format("a part changes value '{}' before part '{}' reads what was gathered of it; tensor "
                          "blocks on one rank need it as it was",
                          inner_.values[of].name, part.name));
        read |= part.reads_value(id);
        changed |= read && part.writes_value(of);
      }
    }
  }
}

void BlockedGraph::place_gradients() {
  gradients_.resize(parameters_.size());
  for (int place = 0; place < gradients_.count(); ++place) {
    const ParameterSpec& parameter = parameters_[static_cast<std::size_t>(place)];
    if (!in_parts(parameter)) continue;
    const auto writes = [&](const PartSpec& part) {
      return part.pass == Pass::backward && part.writes_gradient(place);
    };
    const auto first = std::ranges::find_if(inner_.parts, writes);
    if (first == inner_.parts.end()) continue;
    const std::int64_t numel = numel_of(parameter.shape);
    const std::int64_t bytes = round_up(numel * bytes_of(parameter.dtype), kAlignmentBytes);
    Parts& of = gradients_[place];
    of = {.numel = numel,
          .stride = bytes,
          .type = parameter.dtype,
          .first_part = static_cast<int>(first - inner_.parts.begin())};
    of.parts = add({.name = parameter.name + ".gradient.parts", .bytes = own() * bytes, .held = Held::split});
    of.all = ranks_ == 1 ? of.parts
                         : add({.name = parameter.name + ".gradient.all",
                                .bytes = blocks_ * bytes,
                                .exchanged = of.parts});
  }
}

std::vector<ValueId> BlockedGraph::renamed(const std::vector<ValueId>& ids) const {
  std::vector<ValueId> result;
  for (const ValueId id : ids) {
    const ValueId in = id < 0 ? id : lies_[id].in;
    if (std::ranges::find(result, in) == result.end()) result.push_back(in);
  }
  return result;
}

void BlockedGraph::place_parts() {
  const auto last_that = [&](Pass pass, const auto& does) {
    int last = -1;
    for (int part = 0; part < inner_.parts.count(); ++part)
      if (inner_.parts[part].pass == pass && does(inner_.parts[part])) last = part;
    return last;
  };
  for (int id = 0; id < inner_.parts.count(); ++id) {
    const PartSpec& inner = inner_.parts[id];
    PartSpec part = inner;
    part.reads = renamed(inner.reads);
    part.writes = renamed(inner.writes);
    part.flops *= own();
    std::vector<int> added;  // the parameters of whose gradients this makes the last parts
    if (is_of_backward(inner.pass)) {
      part.gradients = std::vector<int>();
      for (int place = 0; place < gradients_.count(); ++place) {
        if (!inner.writes_gradient(place)) continue;
        const Parts& parts = gradients_[place];
        if (parts.numel == 0) {
          part.gradients->push_back(place);
        } else if (inner.pass == Pass::backward) {
          part.writes.push_back(parts.parts);
          if (id != parts.first_part) part.reads.push_back(parts.parts);
          if (id == last_that(inner.pass, [&](const PartSpec& of) { return of.writes_gradient(place); }))
            added.push_back(place);
        }
      }
      // What it would make apart is a sum of its own.
      if (inner.pass == Pass::weight_gradient && part.gradients->empty()) continue;
    }
    graph_.parts.push_back(std::move(part));
    steps_.push_back({.kind = Step::Kind::part, .part = id});
    for (const ValueId value : inner.writes) {
      if (value < 0 || sums_[value] == kNoValue) continue;
      if (id != last_that(inner.pass, [&](const PartSpec& of) { return of.writes_value(value); })) continue;
      PartSpec sum = {.name = inner_.values[value].name + " sum",
                      .pass = inner.pass,
                      .reads = {lies_[value].in},
                      .writes = {sums_[value]},
                      .workspace_bytes = scratch_bytes(own(), numel_of_sum(value)),
                      .evaluation_only = inner.evaluation_only};
      if (is_of_backward(inner.pass)) sum.gradients = kNoGradients;
      graph_.parts.push_back(std::move(sum));
      steps_.push_back({.kind = Step::Kind::sum, .value = value});
    }
    if (added.empty()) continue;
    PartSpec sum = {.name = inner.name + " sums", .pass = inner.pass, .gradients = added};
    for (const int place : added) {
      const Parts& parts = gradients_[place];
      sum.reads.push_back(parts.all);
      sum.workspace_bytes = std::max(
          sum.workspace_bytes, parts.numel * bytes_of(DType::fp32) + scratch_bytes(blocks_, parts.numel));
    }
    graph_.parts.push_back(std::move(sum));
    steps_.push_back({.kind = Step::Kind::gradients});
  }
}

// Whether a part of a rank that is alone reads that value in place of what several ranks gather of it.
bool BlockedGraph::reads_in_place(const Step& step, ValueId value) const {
  if (ranks_ > 1 || step.kind != Step::Kind::part) return false;
  return std::ranges::any_of(inner_.parts[step.part].reads, [&](ValueId read) {
    return read >= 0 && inner_.values[read].exchanged != kNoValue && lies_[read].in == value;
  });
}

// Where a rank is alone, parts read the value that others read an exchange's copy of: nothing may be written
// over it before.
void BlockedGraph::keep_what_is_read() {
  for (ValueId id = 0; id < graph_.values.count(); ++id) {
    const ValueId below = graph_.values[id].over;
    if (below == kNoValue) continue;
    bool gone = false, read = false;
    for (int part = 0; part < graph_.parts.count(); ++part) {
      const PartSpec& of = graph_.parts[part];
      const bool writes = of.writes_value(id);
      // Where a part reads it in place, its first block would write over what its second reads.
      read |= (gone && of.reads_value(below)) || (writes && reads_in_place(steps_[part], below));
      gone |= writes;
    }
    if (read) graph_.values[id].over = kNoValue;
  }
}

}  // namespace tessera::nn
