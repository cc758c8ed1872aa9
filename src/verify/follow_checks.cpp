// What a step needs of what its buffers hold: at uses, sums, updates and at the end.
#include <fmt/format.h>

#include <algorithm>

#include "src/verify/follow.h"

namespace tessera {

void Follower::check_activation(InstructionId id, const Operand& operand, Term expected) {
  const Term found = contents_.held(operand.buffer, operand.region);
  if (found != expected)
    report(id, fmt::format("reads {} from '{}'; it needs {}", terms_.describe(found),
                           buffer(operand.buffer).name, terms_.describe(expected)));
}

// The compute of a unit gets what its parameters say, by their order: all flats whole where the pass reads
// them. The parts of a backward have the gradients of all trainable parameters between them, see
// check_gradients().
bool Follower::check_use(InstructionId id) {
  const Instruction& use = program_.at(id);
  const UnitSpec& unit = layout().units()[use.unit];
  std::vector<FlatId> flats;
  std::vector<ParameterId> homes;
  bool whole = true;
  for (const Operand& operand : use.operands) {
    const FlatId flat = buffer(operand.buffer).flat;
    if (operand.role == Role::parameters) flats.push_back(flat);
    if (operand.role == Role::parameters) whole &= operand.region == Region::part_of(kWhole);
    if (operand.role != Role::gradient) continue;
    homes.push_back(operand.region.parameter);
    whole &= operand.region.kind == Region::Kind::parameter && operand.region.parameter >= 0 &&
             operand.region.parameter < layout().parameters() &&
             layout().place(operand.region.parameter).flat == flat;
  }
  const std::span<const FlatId> used = layout().flats_used_by(use.unit);
  const bool read =
      use.pass == Pass::forward || (use.pass != Pass::weight_gradient && !unit.read_in_forward_only);
  if (!whole || !std::ranges::equal(flats, read ? used : used.first(0))) {
    report(id, "does not have its unit's parameters, whole and in their order");
    return false;
  }
  if (use.part < 0 || !is_of_backward(use.pass)) return check_gradients(id, std::move(homes));
  OfBackward& all = backward_[{use.unit, use.microbatch}];
  all.last = id;
  all.homes.insert(all.homes.end(), homes.begin(), homes.end());
  return true;
}

// `homes`: of the parameters whose gradients a backward wrote, in all its parts.
bool Follower::check_gradients(InstructionId id, std::vector<ParameterId> homes) {
  const Instruction& use = program_.at(id);
  const auto count = static_cast<ParameterId>(layout().units()[use.unit].parameters.size());
  const ParameterId first = layout().first_parameter(use.unit);
  std::vector<ParameterId> expected;
  for (ParameterId of = first; of < first + count; ++of)
    if (is_of_backward(use.pass) && layout().flat(layout().place(of).flat).trainable)
      expected.push_back(layout().place(of).home);
  if (use.part >= 0) {  // each part has its own, in their order; some may have a part of the same
    for (std::vector<ParameterId>* of : {&homes, &expected}) {
      std::ranges::sort(*of);
      of->erase(std::unique(of->begin(), of->end()), of->end());
    }
  }
  if (homes == expected) return true;
  report(id, "does not have the gradients of its unit's parameters, in their order");
  return false;
}

const std::string& Follower::incomplete(Term sum, ParameterId parameter) {
  const auto [at, is_new] = known_.try_emplace({sum, parameter});
  if (!is_new) return at->second;
  std::string& wrong = at->second;
  const AxisSet over = summed_over(layout().place(parameter).flat);
  std::vector<Addend> parts;
  if (!terms_.addends(sum, parts)) return wrong = fmt::format("it is {}", terms_.describe(sum));
  // What is to come: replicas one after the other where they are added so, of each all rounds, of a round the
  // ranks along shard.
  struct Next {
    int replica = 0, microbatch = 0, shard = 0;
  };
  std::map<std::pair<UnitId, int>, Next> next;
  for (const Addend& part : parts) {
    Next& expected = next[{part.of.unit, part.of.use}];
    if (part.of.microbatch != expected.microbatch)
      return wrong = fmt::format("microbatch {} is added by unit {} where microbatch {} should be",
                                 part.of.microbatch, program_.units[part.of.unit].name, expected.microbatch);
    if (part.over != over || !part.from[Axis::tensor].all())
      return wrong = fmt::format("that of microbatch {} is not summed over all ranks", part.of.microbatch);
    const auto along = [&](Axis axis) { return part.from[axis].among(model_.mesh.extent(axis)); };
    const Contributors replicas = along(Axis::replicate), shards = along(Axis::shard);
    const int ranks = program_.rounds().shards(model_.mesh, part.of.microbatch);
    if (replicas.first != expected.replica || shards.first != expected.shard ||
        shards.first + shards.count > ranks)
      return wrong = fmt::format("that of microbatch {} is not summed over the ranks that have it",
                                 part.of.microbatch);
    expected.shard += shards.count;
    if (expected.shard < ranks) continue;
    expected.shard = 0;
    if (++expected.microbatch < program_.microbatches) continue;
    expected = {.replica = replicas.first + replicas.count};
  }
  for (const auto& writer : model_.writers.at(parameter))
    if (const Next& of = next[writer]; of.replica != model_.mesh.extent(Axis::replicate))
      return wrong = fmt::format("unit {} has added {} of {} microbatches", program_.units[writer.first].name,
                                 of.microbatch, program_.microbatches);
  return wrong;
}

std::string Follower::incomplete(const Operand& gradient) {
  const FlatId flat = buffer(gradient.buffer).flat;
  const IdSpan<const ParameterId> parameters = layout().flat(flat).parameters;
  for (int cell = 0; cell < contents_.cells(); ++cell) {
    if (!contents_.has_cell(flat, gradient.region.spread, cell)) continue;
    for (int item = 0; item < contents_.items(flat); ++item) {
      const Term sum = contents_.at(gradient.buffer, cell, item);
      if (item == contents_.gaps(flat)) {
        if (sum != kZero && !layout().gaps(flat, 0, layout().flat(flat).padded_numel).empty())
          return fmt::format("the gaps between parameters are not zero but {}", terms_.describe(sum));
        continue;
      }
      const ParameterId parameter = parameters[item];
      if (const std::string& wrong = incomplete(sum, parameter); !wrong.empty())
        return fmt::format("the gradient of '{}' is not complete: {}", layout().parameter(parameter).name,
                           wrong);
    }
  }
  return {};
}

// Summed over all ranks, each element counts once only where the parts that they take do not overlap.
void Follower::take_squares(InstructionId id, const Operand& gradient) {
  const FlatId flat = buffer(gradient.buffer).flat;
  std::vector<Region> sums, of_all, by_parameter;
  for (const Operand& operand : program_.at(id).operands)
    if (operand.role == Role::squares) sums.push_back(operand.region);
  of_all = by_parameter = {Region::sum_of(kAllParameters)};
  for (const ParameterId parameter : layout().flat(flat).parameters)
    by_parameter.push_back(Region::sum_of(parameter));
  if (sums != of_all && sums != by_parameter)
    report(id, fmt::format("does not add its squares to the sums for flat {}", flat));
  for (const Axis axis : kCuts)
    if (contents_.ranks_of(flat).contains(axis) && !gradient.region.spread.axes.contains(axis))
      report(id,
             fmt::format("takes the squares of elements that its peers along {} take, too", name_of(axis)));
  if (decided_) report(id, "takes squares behind the decision that needs them");
  if (const std::string wrong = incomplete(gradient); !wrong.empty())
    report(id, fmt::format("takes squares too soon: {}", wrong));
  ++squared_.times[flat];
  if (!same_sums(gradient)) report(id, "takes squares of a gradient that others have in another order");
}

bool Follower::same_sums(const Operand& gradient) {
  for (const ParameterId parameter : layout().flat(buffer(gradient.buffer).flat).parameters) {
    Term& known = squared_.sums[parameter];
    const Term sum = contents_.at(gradient.buffer, 0, contents_.item(parameter));
    if (known == kUndefined) known = sum;
    if (known != sum) return false;
  }
  return true;
}

void Follower::check_state(InstructionId id, const Operand& operand, Stored stored, int version,
                           std::string_view verb) {
  const FlatId flat = buffer(operand.buffer).flat;
  const IdSpan<const ParameterId> parameters = layout().flat(flat).parameters;
  const Term expected = terms_.state(stored, version);
  for (int cell = 0; cell < contents_.cells(); ++cell) {
    if (!contents_.has_cell(flat, operand.region.spread, cell)) continue;
    for (int item = 0; item < contents_.gaps(flat); ++item) {
      const Term found = contents_.at(operand.buffer, cell, item);
      if (found == expected) continue;
      return report(id, fmt::format("{} {} of '{}' from '{}'{}; it needs {}", verb, terms_.describe(found),
                                    layout().parameter(parameters[item]).name, buffer(operand.buffer).name,
                                    cell == 0 ? "" : ", in what is its peers'", terms_.describe(expected)));
    }
  }
}

Stored Follower::stored_as(Role role) {
  return role == Role::moment1 ? Stored::moment1 : role == Role::moment2 ? Stored::moment2 : Stored::master;
}

void Follower::update(InstructionId id) {
  const Instruction& instruction = program_.at(id);
  const Operand& gradient = instruction.operand(Role::gradient);
  const FlatId flat = buffer(gradient.buffer).flat;
  if (instruction.when < 0) return report(id, "depends on no decision");
  if (model_.early && buffer(instruction.when).role == BufferRole::decision)
    report(id, "waits for a decision, although other updates of the step do not");
  if (buffer(instruction.when).role == BufferRole::previous_decision) {
    contents_.each(gradient.buffer, gradient.region.spread, [&](Term& term, int, int item) {
      if (item != contents_.gaps(flat) && term != terms_.carried_gradient())
        report(id, "does not read the gradient that the step before left");
    });
  } else if (const std::string wrong = incomplete(gradient); !wrong.empty()) {
    report(id, fmt::format("updates by a wrong gradient: {}", wrong));
  } else if (!same_sums(gradient)) {
    report(id, "updates by a gradient that is added up in another order than that of the norm");
  }
  const bool own_master = instruction.find(Role::parameter) != nullptr;
  for (const Operand& operand : instruction.operands) {
    if (operand.role == Role::gradient) continue;
    const Stored stored = operand.role == Role::parameter               ? Stored::parameter
                          : operand.role == Role::master && !own_master ? Stored::parameter
                                                                        : stored_as(operand.role);
    if (reads(operand.access)) check_state(id, operand, stored, 0, "updates");
    contents_.each(operand.buffer, operand.region.spread,
                   [&](Term& term, int, int) { term = terms_.state(stored, 1); });
  }
}

// What persists at the end.
void Follower::finish() {
  if (decided_ != (program_.kind != StepKind::finish))
    findings_.add(Fault::wrong_meaning, index_, {},
                  decided_ ? "a step is decided that began before" : "the step is never decided");
  for (const auto& [use, backward] : backward_) check_gradients(backward.last, backward.homes);
  const bool any_updates = program_.kind != StepKind::evaluate;
  for (BufferId id = 0; id < program_.buffers.count(); ++id) {
    const Buffer& of = buffer(id);
    if (!of.persistent || of.flat < 0) continue;
    const bool carried = model_.carried[of.flat];
    const auto wrong = [&](const std::string& what) {
      findings_.add(Fault::wrong_meaning, index_, {},
                    fmt::format("at the end '{}' {}{}", of.name, what,
                                answers_.now ? "" : ", where the decision is to skip"));
    };
    const Operand left = {
        .buffer = id, .region = Region::part_of(finer(of.spread, model_.carried_spread)), .type = of.type};
    if (of.role == BufferRole::host_gradient) {
      if (program_.kind != StepKind::train || !answers_.now) continue;
      if (const std::string what = incomplete(left); !what.empty())
        wrong("is not left to the next step: " + what);
      else if (!same_sums(left))
        wrong("is left to the next step in another order than that of the norm");
      continue;
    }
    const bool updated =
        any_updates && layout().flat(of.flat).trainable &&
        (carried ? answers_.previous : program_.kind == StepKind::train && (model_.early || answers_.now));
    const Term expected = terms_.state(stored_in(id), updated ? 1 : 0);
    for (int cell = 0; cell < contents_.cells(); ++cell) {
      if (!contents_.has_cell(of.flat, of.spread, cell)) continue;
      for (int item = 0; item < contents_.gaps(of.flat); ++item)
        if (const Term found = contents_.at(id, cell, item); found != expected) {
          wrong(
              fmt::format("holds {}; it should hold {}", terms_.describe(found), terms_.describe(expected)));
          item = contents_.gaps(of.flat), cell = contents_.cells();
        }
    }
  }
}

}  // namespace tessera
