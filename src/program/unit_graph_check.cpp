// UnitGraph::check(): what a unit declares can be built.
#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "src/layout/enumerators.h"
#include "src/program/shared_bytes.h"
#include "tessera/activations.h"
#include "tessera/error.h"

namespace tessera {

namespace {

// Which of the values that units share a pass may read and write.
bool may_read(Pass pass, ValueId shared) {
  return shared == SharedValue::batch || shared == SharedValue::input ||
         (shared == SharedValue::output_gradient && is_of_backward(pass));
}
bool may_write(Pass pass, ValueId shared) {
  return (shared == SharedValue::output && pass == Pass::forward) ||
         (shared == SharedValue::input_gradient && pass == Pass::backward);
}

// Follows the parts in their order, as a step without recompute runs them.
class Check {
 public:
  Check(std::string_view unit, const UnitGraph& graph, int tensor_ranks)
      : unit_(unit), graph_(graph), tensor_ranks_(tensor_ranks) {}

  void run() {
    check_values();
    for (ValueId id = 0; id < graph_.values.count(); ++id)
      if (graph_.values[id].keep == Keep::cached) kept_.insert(id);
    for (const PartSpec& part : graph_.parts) {
      if (part.evaluation_only && part.pass != Pass::forward)
        refuse(part, "is for evaluations only, which run forward only");
      if (part.pass == Pass::weight_gradient && !part.writes.empty())
        refuse(part,
               "writes a value, which a part of Pass::weight_gradient may not: it writes gradients only");
      if (graph_.forward_only && part.pass != Pass::forward)
        refuse(part, fmt::format("is of {}, and its unit is forward_only", name_of(part.pass)));
    }
    check_has(Pass::forward);
    if (!graph_.forward_only) check_has(Pass::backward);
    // An evaluation; then a step, whose backward has only what its own forward kept.
    run(Pass::forward, StepKind::evaluate);
    if (!graph_.forward_only) {
      shared_.clear();
      for (const Pass pass : {Pass::forward, Pass::backward, Pass::weight_gradient, Pass::recompute})
        if (pass != Pass::weight_gradient || graph_.is_split) run(pass, StepKind::train);
    }
    if (graph_.output_bytes > 0 && !writes_output())
      throw UsageError(
          fmt::format("unit '{}' has {} bytes of output, which no part of forward writes, or not all of them",
                      unit_, graph_.output_bytes));
  }

 private:
  void check_has(Pass pass) const {
    if (graph_.is_split || std::ranges::find(graph_.parts, pass, &PartSpec::pass) != graph_.parts.end())
      return;
    throw UsageError(
        fmt::format("unit '{}' declares no part of {}; UnitActivations{{}} declares one for each pass", unit_,
                    name_of(pass)));
  }

  bool writes_output() const {
    std::int64_t bytes = 0;
    for (const ValueId id : shared_)
      if (graph_.whole(id) == SharedValue::output)
        bytes += id < 0 ? graph_.output_bytes : graph_.values[id].bytes;
    return bytes == graph_.output_bytes;
  }

  void run(Pass pass, StepKind kind) {
    if (pass != Pass::weight_gradient) written_ = kept_;  // that one has what backward leaves
    met_.clear();
    for (const PartSpec& part : graph_.parts) {
      check_enumerator("the pass of " + name(part), part.pass, Pass::weight_gradient);
      if (part.pass == pass && (kind == StepKind::evaluate || !part.evaluation_only)) check(part);
    }
    if (pass == Pass::forward && kind == StepKind::train) keep_written();
  }

  std::string name(const PartSpec& part) const {
    return fmt::format("part '{}' of unit '{}'", part.name, unit_);
  }
  [[noreturn]] void refuse(const PartSpec& part, const std::string& what) const {
    throw UsageError(fmt::format("{} {}", name(part), what));
  }

  void check_values() const {
    if (graph_.output_bytes < 0)
      throw UsageError(fmt::format("unit '{}' has {} bytes of output", unit_, graph_.output_bytes));
    for (ValueId id = 0; id < graph_.values.count(); ++id) {
      const ValueSpec& value = graph_.values[id];
      const std::string name = fmt::format("value '{}' of unit '{}'", value.name, unit_);
      check_enumerator("keep of " + name, value.keep, Keep::cached);
      check_enumerator("held of " + name, value.held, Held::partial);
      if (value.bytes < 0) throw UsageError(fmt::format("{} has {} bytes", name, value.bytes));
      if (value.piece_of != kNoValue) check_piece(id, name);
      if (value.exchanged != kNoValue) check_exchange(id, name);
      if (value.keep == Keep::cached && !graph_.forward_only)
        throw UsageError(
            fmt::format("{} is {}, and its unit is not forward_only", name, name_of(value.keep)));
      if (value.over == kNoValue) continue;
      if (value.over < 0 || value.over >= id)
        throw UsageError(fmt::format("{} is over value {}; it can be over a value before its own, 0 to {}",
                                     name, value.over, id - 1));
      if (value.keep != Keep::pass)
        throw UsageError(fmt::format("{} is over another and kept as {}; only what a pass needs can be", name,
                                     name_of(value.keep)));
      if (const ValueSpec& below = graph_.values[graph_.root(id)]; below.keep == Keep::cached)
        throw UsageError(fmt::format("{} is over '{}', which is {}: nothing may take its place", name,
                                     below.name, name_of(below.keep)));
      if (const ValueSpec& below = graph_.values[graph_.root(id)]; value.bytes > below.bytes)
        throw UsageError(fmt::format("{} has {} bytes and is over '{}', which has {}", name, value.bytes,
                                     below.name, below.bytes));
    }
  }

  void check_piece(ValueId id, const std::string& name) const {
    const ValueSpec& piece = graph_.values[id];
    const ValueId of = piece.piece_of;
    if (of >= id || of < SharedValue::input_gradient || of == SharedValue::batch)
      throw UsageError(
          fmt::format("{} is a piece of value {}; it can be one of a value before its own, 0 to {}, or of "
                      "what units share "
                      "besides the batch",
                      name, of, id - 1));
    if (piece.keep != Keep::pass || piece.over != kNoValue || piece.in_pieces)
      throw UsageError(fmt::format(
          "{} is a piece of another; it is kept as that one is, and of its own it has {}, over no other "
          "value and not in pieces",
          name, name_of(Keep::pass)));
    if (of >= 0 && graph_.values[of].piece_of != kNoValue)
      throw UsageError(
          fmt::format("{} is a piece of '{}', which is one itself", name, graph_.values[of].name));
    const std::vector<ValueId> pieces = graph_.pieces(of);
    std::int64_t begin = 0;
    for (const ValueId other : pieces) begin += other < id ? graph_.values[other].bytes : 0;
    if (piece.begin != begin)
      throw UsageError(
          fmt::format("{} begins at byte {}, and the pieces before it end at {}", name, piece.begin, begin));
    const std::int64_t end = begin + piece.bytes;
    const bool known = of >= 0 || of == SharedValue::output;  // the others' bytes are other units' to say
    const std::int64_t bytes = of >= 0 ? graph_.values[of].bytes : graph_.output_bytes;
    if (piece.bytes == 0 && !(known && bytes == 0)) throw UsageError(fmt::format("{} has no bytes", name));
    if (known && pieces.back() == id && end != bytes)
      throw UsageError(fmt::format("{} is the last piece and ends at byte {}; what it is a piece of has {}",
                                   name, end, bytes));
    if (of < 0) return;
    const ValueSpec& whole = graph_.values[of];
    if (piece.held != whole.held || piece.type != whole.type)
      throw UsageError(fmt::format("{} is {} and {}, and a piece of '{}', which is {} and {}", name,
                                   name_of(piece.held), name_of(piece.type), whole.name, name_of(whole.held),
                                   name_of(whole.type)));
  }

  void check_exchange(ValueId id, const std::string& name) const {
    const ValueSpec& made = graph_.values[id];
    const ValueId of = made.exchanged;
    if (tensor_ranks_ < 2)
      throw UsageError(
          fmt::format("{} is made by an exchange along the tensor axis, on which there is one rank", name));
    if (of >= id || of < SharedValue::input_gradient)
      throw UsageError(fmt::format(
          "{} is exchanged from value {}; it can be from one before its own, 0 to {}", name, of, id - 1));
    if (of == SharedValue::batch || of == SharedValue::output || of == SharedValue::input_gradient)
      throw UsageError(fmt::format("{} is exchanged from value {}, which no unit hands on to it", name, of));
    if (made.keep != Keep::pass || made.over != kNoValue)
      throw UsageError(
          fmt::format("{} is made by an exchange; it must be there in its pass only ({}), and "
                      "over no other value",
                      name, name_of(Keep::pass)));
    const Held from = of < 0 ? Held::split : graph_.values[of].held;
    const bool gathers = from == Held::split && made.held == Held::copied;
    const bool sums = from == Held::partial && made.held == Held::split;
    if (!gathers && !sums)
      throw UsageError(
          fmt::format("{} is {} and exchanged from a value that is {}; an exchange makes a copied "
                      "value of a split one, or a split one of a partial one",
                      name, name_of(made.held), name_of(from)));
    if (of < 0) return;  // its bytes are the other unit's to say
    const ValueSpec& source = graph_.values[of];
    const std::int64_t summed = source.bytes / bytes_of(source.type) * bytes_of(DType::fp32);
    const std::int64_t whole = gathers ? made.bytes : summed;
    const std::int64_t part = gathers ? source.bytes : made.bytes;
    if (whole != part * tensor_ranks_)
      throw UsageError(fmt::format(
          "{} has {} bytes and is exchanged from '{}', which has {}; of {} tensor "
          "ranks the whole must be {} times a part, in fp32 where it is a sum",
          name, made.bytes, graph_.values[of].name, graph_.values[of].bytes, tensor_ranks_, tensor_ranks_));
  }

  // Whether the value is there, or what exchanges make it of.
  bool there(Pass pass, ValueId id) const {
    const ValueId whole = graph_.whole(id);
    if (whole < 0) return may_read(pass, whole);
    if (written_.contains(id) || written_.contains(whole)) return true;
    for (const ValueId of : {id, whole})
      if (const ValueId source = graph_.values[of].exchanged; source != kNoValue) return there(pass, source);
    const std::vector<ValueId> pieces = graph_.pieces(id);
    return !pieces.empty() && std::ranges::all_of(pieces, [&](ValueId piece) { return there(pass, piece); });
  }

  // The value, what it is a piece of, and its pieces.
  template <class Visit>
  void each_part(ValueId id, Visit visit) const {
    const ValueId whole = graph_.whole(id);
    visit(whole);
    for (const ValueId piece : graph_.pieces(whole))
      if (graph_.overlap(piece, id)) visit(piece);
  }

  void meet(ValueId id) {
    each_part(id, [&](ValueId met) {
      met_.insert(met);
      if (met >= 0 && graph_.values[met].exchanged != kNoValue) meet(graph_.values[met].exchanged);
    });
  }

  void check(const PartSpec& part) {
    if (part.workspace_bytes < 0)
      refuse(part, fmt::format("has {} bytes of workspace", part.workspace_bytes));
    if (part.gradients && !is_of_backward(part.pass))
      refuse(part, "writes gradients of parameters, which only backward does");
    for (const ValueId id : part.reads) {
      check_exists(part, id, may_read);
      if (id >= 0 && graph_.values[id].held == Held::partial)
        refuse(part, fmt::format("reads value '{}', which is a part of a sum; it must read what an exchange "
                                 "makes of it",
                                 graph_.values[id].name));
      if (id >= 0 && !there(part.pass, id))
        refuse(part, fmt::format("reads value '{}', which {}", graph_.values[id].name,
                                 part.pass == Pass::forward
                                     ? "no part before it writes"
                                     : "is not there: it was kept for its pass only, or written over"));
      meet(id);
    }
    for (const ValueId id : part.writes) {
      check_exists(part, id, may_write);
      const ValueId whole = graph_.whole(id);
      if (whole < 0) {
        const auto written = [&](ValueId other) { return graph_.overlap(other, id); };
        if (std::ranges::any_of(shared_, written))
          refuse(part, fmt::format("writes the {} of its unit, which another part writes already",
                                   whole == SharedValue::output ? "output" : "input's gradient"));
        shared_.insert(id);
        continue;
      }
      if (!graph_.exchanged_for(id).empty())
        refuse(part, fmt::format("writes value '{}', which an exchange makes", graph_.values[id].name));
      if (graph_.values[whole].keep == Keep::cached && !part.reads_value(id))
        refuse(part, fmt::format("writes value '{}' and does not read it; what is {} is changed in place",
                                 graph_.values[id].name, name_of(Keep::cached)));
      check_over(part, id);
      meet(id);
      // What lay in that memory is gone.
      std::erase_if(written_, [&](ValueId other) { return share_memory(other, id); });
      written_.insert(id);
    }
  }

  // Whether writing one takes the place of the other. Where a piece of a value is written again, the rest
  // stays.
  bool share_memory(ValueId other, ValueId written) const {
    if (graph_.root(other) != graph_.root(written)) return false;
    if (graph_.whole(other) == graph_.whole(written)) return graph_.whole(written) == written;
    return share_bytes(graph_.values[other], graph_.values[written]);
  }

  // The value below is there: a recompute makes what its parts, and those of backward, read.
  void check_over(const PartSpec& part, ValueId id) const {
    const ValueId below = graph_.values[graph_.whole(id)].over;
    if (below == kNoValue) return;
    const auto is_below = [&](ValueId read) { return graph_.whole(read) == below; };
    if (std::ranges::any_of(part.reads, is_below) || (part.pass == Pass::backward && met_.contains(below)))
      return;
    refuse(part,
           fmt::format("writes value '{}' over '{}', which {} reads", graph_.values[id].name,
                       graph_.values[below].name,
                       part.pass == Pass::backward ? "no part of backward so far" : "it does not itself"));
  }

  // `may`: whether a pass may touch what units share, all of it or a piece.
  void check_exists(const PartSpec& part, ValueId id, bool (*may)(Pass, ValueId)) const {
    if (id >= graph_.values.count() || (graph_.whole(id) < 0 && !may(part.pass, graph_.whole(id))))
      refuse(part, fmt::format("touches value {}, which it cannot; its unit has values 0 to {}", id,
                               graph_.values.count() - 1));
  }

  void keep_written() {
    for (const ValueId id : written_)
      if (graph_.values[graph_.whole(id)].keep != Keep::pass) kept_.insert(id);
  }

  std::string_view unit_;
  const UnitGraph& graph_;
  const int tensor_ranks_;
  std::set<ValueId> written_;  // and not written over
  std::set<ValueId> kept_;     // by forward, or by evaluations before
  std::set<ValueId> met_;      // by parts of this pass
  std::set<ValueId> shared_;   // that parts have written
};

}  // namespace

void UnitGraph::check(std::string_view unit, int tensor_ranks) const {
  Check(unit, *this, tensor_ranks).run();
  if (const UnitGraph split = split_backward(*this); split.is_split) Check(unit, split, tensor_ranks).run();
}

}  // namespace tessera
