#include "tessera/prove.h"

#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <map>
#include <set>

#include "src/program/opcodes.h"
#include "src/verify/checks.h"
#include "src/verify/contents.h"

namespace tessera {
namespace {

constexpr Axis kCuts[] = {Axis::shard, Axis::replicate};

// What decisions say in one run along the programs.
struct Answers {
  bool previous = false;
  bool now = false;
};

// What the programs say of the model, before any is followed.
struct Model {
  const Layout& layout;
  AxisSet ranks;              // the axes along which gradients are summed
  std::vector<bool> carried;  // [flat] updated by the next step
  Spread carried_spread;      // of what such an update reads of its gradient
  bool early;                 // updates wait for no decision
  std::map<ParameterId, std::set<std::pair<UnitId, int>>> writers;  // [home] unit and use in a microbatch
};

// Follows one program. What it sends waits in `messages` for the rank that receives it.
using Message = std::vector<Term>;
using Messages = std::map<std::tuple<int, int, Lane>, std::deque<Message>>;  // from, to, the sender's lane

class Follower {
 public:
  Follower(const Program& program, int index, const Model& model, Answers answers, Terms& terms,
           Messages& messages, std::vector<int>& squares, Findings& findings)
      : program_(program),
        index_(index),
        model_(model),
        answers_(answers),
        terms_(terms),
        messages_(messages),
        squares_(squares),
        findings_(findings),
        contents_(program, model.layout, model.ranks) {
    begin();
  }

  // Goes on until the end or a message that is not there yet. False where it could not go on at all.
  bool follow() {
    const InstructionId from = next_;
    while (next_ < program_.instructions.count() && step(next_)) ++next_;
    return next_ > from;
  }
  bool over() const { return next_ == program_.instructions.count(); }
  InstructionId next() const { return next_; }
  void finish();

 private:
  const Layout& layout() const { return model_.layout; }
  const Buffer& buffer(BufferId id) const { return program_.buffers[id]; }
  void report(InstructionId id, const std::string& what) {
    findings_.add(Fault::wrong_meaning, index_, {id}, fmt::format("{} {}", describe(program_, id), what));
  }

  void begin();
  bool step(InstructionId id);
  bool applies(InstructionId id);
  // The version of the flat that uses read: that at the step's begin, with what the step before left.
  int current(FlatId flat) const {
    return model_.carried[static_cast<std::size_t>(flat)] && answers_.previous ? 1 : 0;
  }
  Held held_in(BufferId id) const;
  static Held held_as(Role role);

  template <class Visit>
  void each_cell(const Operand& operand, Visit visit) const {
    for (int cell = 0; cell < kCells; ++cell)
      if (contents_.has_cell(operand.region.spread, cell)) visit(cell);
  }

  void use(InstructionId id);
  bool check_use(InstructionId id);
  void check_activation(InstructionId id, const Operand& operand, Term expected);
  void use_gradient(InstructionId id, const Operand& operand);
  void gather(const Instruction& instruction);
  void reduce(InstructionId id);
  void accumulate(const Instruction& instruction);
  void copy(const Instruction& instruction);
  void zero(const Instruction& instruction);
  void send(const Instruction& instruction);
  bool receive(const Instruction& instruction);
  void take_squares(InstructionId id, const Operand& gradient);
  void update(InstructionId id);
  // Empty where the part of the gradient is complete, else what is wrong with it.
  std::string incomplete(const Operand& gradient);
  const std::string& incomplete(Term sum, ParameterId parameter);
  void check_state(InstructionId id, const Operand& operand, Held held, int version, std::string_view verb);

  const Program& program_;
  const int index_;
  const Model& model_;
  const Answers answers_;
  Terms& terms_;
  Messages& messages_;
  std::vector<int>& squares_;  // [flat] how often taken, on all ranks
  Findings& findings_;
  Contents contents_;
  InstructionId next_ = 0;
  bool decided_ = false;
  std::map<std::tuple<UnitId, ParameterId, int>, int> written_;  // [unit, home, microbatch] by so many uses
  std::map<std::pair<Term, ParameterId>, std::string> known_;    // of incomplete()
};

// Where the buffer's elements are those of a state: which.
Held Follower::held_in(BufferId id) const {
  const Buffer& of = buffer(id);
  const int number = of.index;
  switch (of.role) {
    case BufferRole::master:
      return Held::master;
    case BufferRole::moment:
      return number == 0 ? Held::moment1 : Held::moment2;
    case BufferRole::state_window:
      return number < 0 ? Held::master : number == 0 ? Held::moment1 : Held::moment2;
    default:
      return Held::parameter;
  }
}

void Follower::begin() {
  for (BufferId id = 0; id < program_.buffers.count(); ++id) {
    const Buffer& of = buffer(id);
    if (of.flat >= 0 && of.bytes != numel_of(layout().flat(of.flat), of.spread) * bytes_of(of.type))
      findings_.add(
          Fault::wrong_meaning, index_, {},
          fmt::format("'{}' has {} bytes, which is not what the layout has of it", of.name, of.bytes));
    if (!of.persistent || of.flat < 0) continue;
    const bool carried = of.role == BufferRole::host_gradient;
    const Term holds = carried ? terms_.carried_gradient() : terms_.state(held_in(id), 0);
    const Spread spread = carried ? finer(of.spread, model_.carried_spread) : of.spread;
    for (int cell = 0; cell < kCells; ++cell)
      for (int item = 0; item < contents_.items(of.flat); ++item)
        contents_.at(id, cell, item) = contents_.has_cell(spread, cell) ? holds : kUndefined;
  }
}

// Whether the decision that the instruction depends on says yes. One that is not made yet says nothing.
bool Follower::applies(InstructionId id) {
  const BufferId when = program_.at(id).when;
  if (when < 0) return true;
  switch (buffer(when).role) {
    case BufferRole::decision:
      if (!decided_) report(id, "depends on the step's decision, which is not made yet");
      return answers_.now;
    case BufferRole::previous_decision:
      if (decided_) report(id, "depends on the decision of the step before, which this step's has replaced");
      return answers_.previous;
    default:
      return true;  // the step's terms
  }
}

bool Follower::step(InstructionId id) {
  const Instruction& instruction = program_.at(id);
  for (const Operand& operand : instruction.operands) contents_.enter(operand.buffer, id);
  if (instruction.op == Opcode::receive) return receive(instruction);
  if (!applies(id)) return true;
  switch (instruction.op) {
    case Opcode::use:
      use(id);
      break;
    case Opcode::all_gather:
      gather(instruction);
      break;
    case Opcode::reduce_scatter:
      reduce(id);
      break;
    case Opcode::accumulate:
      accumulate(instruction);
      break;
    case Opcode::square_sum:
      take_squares(id, instruction.operand(Role::from));
      break;
    case Opcode::zero:
      zero(instruction);
      break;
    case Opcode::send:
      send(instruction);
      break;
    case Opcode::reduce_scalars:
      if (decided_) report(id, "decides a second time");
      decided_ = true;
      break;
    case Opcode::update:
      update(id);
      break;
    case Opcode::copy:
      copy(instruction);
      break;
    case Opcode::receive:
      break;
  }
  return true;
}

void Follower::check_activation(InstructionId id, const Operand& operand, Term expected) {
  const Term found = contents_.whole(operand.buffer);
  if (found != expected)
    report(id, fmt::format("reads {} from '{}'; it needs {}", terms_.describe(found),
                           buffer(operand.buffer).name, terms_.describe(expected)));
}

// The module of a unit gets what its parameters say, by their order: all flats whole where the pass reads
// them, and the gradient of every trainable parameter in backward.
bool Follower::check_use(InstructionId id) {
  const Instruction& use = program_.at(id);
  const UnitSpec& unit = layout().units()[static_cast<std::size_t>(use.unit)];
  std::vector<FlatId> flats;
  std::vector<ParameterId> homes, expected;
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
  const ParameterId first = layout().first_parameter(use.unit);
  for (ParameterId of = first; of < first + static_cast<ParameterId>(unit.parameters.size()); ++of)
    if (use.pass == Pass::backward && layout().flat(layout().place(of).flat).trainable)
      expected.push_back(layout().place(of).home);
  const std::span<const FlatId> used = layout().flats_used_by(use.unit);
  const bool read = use.pass == Pass::forward || !unit.read_in_forward_only;
  if (!whole || !std::ranges::equal(flats, read ? used : used.first(0))) {
    report(id, "does not have its unit's parameters, whole and in their order");
    return false;
  }
  if (homes == expected) return true;
  report(id, "does not have the gradients of its unit's parameters, in their order");
  return false;
}

void Follower::use(InstructionId id) {
  const Instruction& use = program_.at(id);
  if (!check_use(id)) return;
  const auto activation = [&](BufferRole role, UnitId unit) {
    return terms_.activation(role, unit, use.microbatch);
  };
  for (const Operand& operand : use.operands) {
    const auto reads_or_makes = [&](Term term) {
      if (reads(operand.access)) check_activation(id, operand, term);
      // What backward changes in place is nothing that others could read.
      if (writes(operand.access))
        contents_.whole(operand.buffer) = operand.access == Access::modify ? kUndefined : term;
    };
    switch (operand.role) {
      case Role::parameters:
        check_state(id, operand, Held::parameter, current(buffer(operand.buffer).flat), "reads");
        break;
      case Role::gradient:
        use_gradient(id, operand);
        break;
      case Role::batch:
        reads_or_makes(activation(BufferRole::batch, -1));
        break;
      case Role::input:
        reads_or_makes(activation(BufferRole::output, use.unit - 1));
        break;
      case Role::output:
        reads_or_makes(activation(BufferRole::output, use.unit));
        break;
      case Role::output_gradient:
        reads_or_makes(activation(BufferRole::output_gradient, use.unit));
        break;
      case Role::input_gradient:
        reads_or_makes(activation(BufferRole::output_gradient, use.unit - 1));
        break;
      case Role::saved:
        reads_or_makes(activation(BufferRole::saved, use.unit));
        break;
      case Role::recomputable:
        reads_or_makes(activation(BufferRole::recomputable, use.unit));
        break;
      default:
        break;
    }
  }
}

// An opened use has written when it is closed.
void Follower::use_gradient(InstructionId id, const Operand& operand) {
  const Instruction& use = program_.at(id);
  if (use.edge == UseEdge::open) return;
  const ParameterId home = operand.region.parameter;
  const int number = written_[{use.unit, home, use.microbatch}]++;
  const Term more = terms_.gradient({.unit = use.unit, .use = number, .microbatch = use.microbatch});
  for (int cell = 0; cell < kCells; ++cell) {
    if (!contents_.has_cell(buffer(operand.buffer).spread, cell)) continue;
    Term& sum = contents_.at(operand.buffer, cell, contents_.item(home));
    sum = operand.access == Access::add ? terms_.add(sum, more) : more;
  }
}

void Follower::gather(const Instruction& instruction) {
  const Axis axis = program_.channels[instruction.channel].axis;
  const Operand& from = instruction.operand(Role::from);
  const Operand& to = instruction.operand(Role::to);
  each_cell(to, [&](int cell) {
    for (int item = 0; item < contents_.items(buffer(to.buffer).flat); ++item) {
      const Term part = contents_.at(from.buffer, cell & ~cell_bit(axis), item);
      contents_.at(to.buffer, cell, item) = (cell & cell_bit(axis)) != 0 ? terms_.of_peer(axis, part) : part;
    }
  });
}

void Follower::reduce(InstructionId id) {
  const Instruction& instruction = program_.at(id);
  const Axis axis = program_.channels[instruction.channel].axis;
  const Operand& from = instruction.operand(Role::from);
  const Operand& to = instruction.operand(Role::to);
  const bool alone = !model_.ranks.contains(axis);
  each_cell(to, [&](int cell) {
    for (int item = 0; item < contents_.items(buffer(to.buffer).flat); ++item) {
      const Term own = contents_.at(from.buffer, cell, item);
      const Term peers = alone ? own : contents_.at(from.buffer, cell | cell_bit(axis), item);
      Term& sum = contents_.at(to.buffer, cell, item);
      sum = terms_.over(axis, own, peers, to.access == Access::add ? sum : kZero);
    }
  });
  if (instruction.find(Role::squares) != nullptr) take_squares(id, to);
}

void Follower::accumulate(const Instruction& instruction) {
  const Operand& from = instruction.operand(Role::from);
  const Operand& to = instruction.operand(Role::to);
  each_cell(to, [&](int cell) {
    for (int item = 0; item < contents_.items(buffer(to.buffer).flat); ++item) {
      const Term more = contents_.at(from.buffer, cell, item);
      Term& sum = contents_.at(to.buffer, cell, item);
      sum = to.access == Access::add ? terms_.add(sum, more) : more;
    }
  });
}

void Follower::copy(const Instruction& instruction) {
  const Operand& from = instruction.operand(Role::from);
  const Operand& to = instruction.operand(Role::to);
  if (to.region.kind == Region::Kind::all) {
    contents_.whole(to.buffer) = contents_.whole(from.buffer);
    return;
  }
  each_cell(to, [&](int cell) {
    for (int item = 0; item < contents_.items(buffer(to.buffer).flat); ++item)
      contents_.at(to.buffer, cell, item) = contents_.at(from.buffer, cell, item);
  });
}

void Follower::zero(const Instruction& instruction) {
  for (const Operand& operand : instruction.operands) {
    const FlatId flat = buffer(operand.buffer).flat;
    for (int cell = 0; cell < kCells; ++cell) {
      if (!contents_.has_cell(operand.region.spread, cell)) continue;
      for (int item = 0; item < contents_.items(flat); ++item) {
        const bool gap = item == contents_.gaps(flat);
        const bool in = operand.region.kind == Region::Kind::gaps ? gap
                        : operand.region.kind == Region::Kind::parameter
                            ? item == contents_.item(operand.region.parameter)
                            : true;
        if (in) contents_.at(operand.buffer, cell, item) = kZero;
      }
    }
  }
}

void Follower::send(const Instruction& instruction) {
  const Operand& from = instruction.operand(Role::from);
  Message& message = messages_[{program_.pipeline_rank, instruction.peer, instruction.lane}].emplace_back();
  if (from.region.kind == Region::Kind::all) {
    message.push_back(contents_.whole(from.buffer));
    return;
  }
  each_cell(from, [&](int cell) {
    for (int item = 0; item < contents_.items(buffer(from.buffer).flat); ++item)
      message.push_back(contents_.at(from.buffer, cell, item));
  });
}

bool Follower::receive(const Instruction& instruction) {
  std::deque<Message>& sent =
      messages_[{instruction.peer, program_.pipeline_rank, other_end(instruction.lane)}];
  if (sent.empty()) return false;
  const Message message = std::move(sent.front());
  sent.pop_front();
  const Operand& to = instruction.operand(Role::to);
  auto next = message.begin();
  const auto take = [&] { return next == message.end() ? kUndefined : *next++; };
  if (to.region.kind == Region::Kind::all) {
    contents_.whole(to.buffer) = take();
    return true;
  }
  each_cell(to, [&](int cell) {
    for (int item = 0; item < contents_.items(buffer(to.buffer).flat); ++item)
      contents_.at(to.buffer, cell, item) = take();
  });
  return true;
}

const std::string& Follower::incomplete(Term sum, ParameterId parameter) {
  const auto [at, is_new] = known_.try_emplace({sum, parameter});
  if (!is_new) return at->second;
  std::string& wrong = at->second;
  std::vector<Addend> parts;
  if (!terms_.addends(sum, parts)) return wrong = fmt::format("it is {}", terms_.describe(sum));
  std::map<std::pair<UnitId, int>, int> next;  // the microbatch that is to come
  for (const Addend& part : parts) {
    int& expected = next[{part.of.unit, part.of.use}];
    if (part.of.microbatch != expected)
      return wrong = fmt::format("microbatch {} is added by unit {} where microbatch {} should be",
                                 part.of.microbatch, program_.units[part.of.unit], expected);
    ++expected;
    if (part.over != model_.ranks)
      return wrong = fmt::format("that of microbatch {} is not summed over all ranks", part.of.microbatch);
  }
  for (const auto& writer : model_.writers.at(parameter))
    if (const int count = next[writer]; count != program_.microbatches)
      return wrong = fmt::format("unit {} has added {} of {} microbatches", program_.units[writer.first],
                                 count, program_.microbatches);
  return wrong;
}

std::string Follower::incomplete(const Operand& gradient) {
  const FlatId flat = buffer(gradient.buffer).flat;
  const std::vector<ParameterId>& parameters = layout().flat(flat).parameters;
  for (int cell = 0; cell < kCells; ++cell) {
    if (!contents_.has_cell(gradient.region.spread, cell)) continue;
    for (int item = 0; item < contents_.items(flat); ++item) {
      const Term sum = contents_.at(gradient.buffer, cell, item);
      if (item == contents_.gaps(flat)) {
        if (sum != kZero && !layout().gaps(flat, 0, layout().flat(flat).padded_numel).empty())
          return fmt::format("the gaps between parameters are not zero but {}", terms_.describe(sum));
        continue;
      }
      const ParameterId parameter = parameters[static_cast<std::size_t>(item)];
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
  std::vector<Region> pairs, of_flat, by_parameter;
  for (const Operand& operand : program_.at(id).operands)
    if (operand.role == Role::squares) pairs.push_back(operand.region);
  of_flat = by_parameter = {Region::pair_at(square_sum_slot(flat))};
  const int flats = static_cast<int>(layout().flats().size());
  for (const ParameterId parameter : layout().flat(flat).parameters)
    by_parameter.push_back(Region::pair_at(parameter_square_sum_slot(flats, parameter), parameter));
  if (pairs != of_flat && pairs != by_parameter)
    report(id, fmt::format("does not put its squares where those of flat {} are looked for", flat));
  for (const Axis axis : kCuts)
    if (model_.ranks.contains(axis) && !gradient.region.spread.axes.contains(axis))
      report(id,
             fmt::format("takes the squares of elements that its peers along {} take, too", name_of(axis)));
  if (decided_) report(id, "takes squares behind the decision that needs them");
  if (const std::string wrong = incomplete(gradient); !wrong.empty())
    report(id, fmt::format("takes squares too soon: {}", wrong));
  ++squares_[static_cast<std::size_t>(flat)];
}

void Follower::check_state(InstructionId id, const Operand& operand, Held held, int version,
                           std::string_view verb) {
  const FlatId flat = buffer(operand.buffer).flat;
  const Term expected = terms_.state(held, version);
  for (int cell = 0; cell < kCells; ++cell) {
    if (!contents_.has_cell(operand.region.spread, cell)) continue;
    for (int item = 0; item < contents_.gaps(flat); ++item) {
      const Term found = contents_.at(operand.buffer, cell, item);
      if (found == expected) continue;
      return report(
          id,
          fmt::format("{} {} of '{}' from '{}'{}; it needs {}", verb, terms_.describe(found),
                      layout().parameter(layout().flat(flat).parameters[static_cast<std::size_t>(item)]).name,
                      buffer(operand.buffer).name, cell == 0 ? "" : ", in what is its peers'",
                      terms_.describe(expected)));
    }
  }
}

Held Follower::held_as(Role role) {
  return role == Role::moment1 ? Held::moment1 : role == Role::moment2 ? Held::moment2 : Held::master;
}

void Follower::update(InstructionId id) {
  const Instruction& instruction = program_.at(id);
  const Operand& gradient = instruction.operand(Role::gradient);
  const FlatId flat = buffer(gradient.buffer).flat;
  if (instruction.when < 0) return report(id, "depends on no decision");
  if (model_.early && buffer(instruction.when).role == BufferRole::decision)
    report(id, "waits for a decision, although other updates of the step do not");
  if (buffer(instruction.when).role == BufferRole::previous_decision) {
    for (int item = 0; item < contents_.gaps(flat); ++item)
      each_cell(gradient, [&](int cell) {
        if (contents_.at(gradient.buffer, cell, item) != terms_.carried_gradient())
          report(id, "does not read the gradient that the step before left");
      });
  } else if (const std::string wrong = incomplete(gradient); !wrong.empty()) {
    report(id, fmt::format("updates by a wrong gradient: {}", wrong));
  }
  const bool own_master = instruction.find(Role::parameter) != nullptr;
  for (const Operand& operand : instruction.operands) {
    if (operand.role == Role::gradient) continue;
    const Held held = operand.role == Role::parameter               ? Held::parameter
                      : operand.role == Role::master && !own_master ? Held::parameter
                                                                    : held_as(operand.role);
    if (reads(operand.access)) check_state(id, operand, held, 0, "updates");
    each_cell(operand, [&](int cell) {
      for (int item = 0; item < contents_.items(flat); ++item)
        contents_.at(operand.buffer, cell, item) = terms_.state(held, 1);
    });
  }
}

// What persists at the end.
void Follower::finish() {
  if (decided_ != (program_.kind != StepKind::finish))
    findings_.add(Fault::wrong_meaning, index_, {},
                  decided_ ? "a step is decided that began before" : "the step is never decided");
  const bool any_updates = program_.kind != StepKind::evaluate;
  for (BufferId id = 0; id < program_.buffers.count(); ++id) {
    const Buffer& of = buffer(id);
    if (!of.persistent || of.flat < 0) continue;
    const bool carried = model_.carried[static_cast<std::size_t>(of.flat)];
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
      continue;
    }
    const bool updated =
        any_updates && layout().flat(of.flat).trainable &&
        (carried ? answers_.previous : program_.kind == StepKind::train && (model_.early || answers_.now));
    const Term expected = terms_.state(held_in(id), updated ? 1 : 0);
    for (int cell = 0; cell < kCells; ++cell) {
      if (!contents_.has_cell(of.spread, cell)) continue;
      for (int item = 0; item < contents_.gaps(of.flat); ++item)
        if (const Term found = contents_.at(id, cell, item); found != expected) {
          wrong(
              fmt::format("holds {}; it should hold {}", terms_.describe(found), terms_.describe(expected)));
          item = contents_.gaps(of.flat), cell = kCells;
        }
    }
  }
}

class World {
 public:
  World(const WorldPrograms& world, const Layout& layout, Findings& findings)
      : world_(world),
        findings_(findings),
        terms_(world.mesh),
        model_{.layout = layout,
               .ranks = {},
               .carried = {},
               .carried_spread = {},
               .early = false,
               .writers = {}} {
    check_arguments();
    for (const Axis axis : kCuts)
      if (world.mesh.extent(axis) > 1) model_.ranks = model_.ranks.with(axis);
    read_model();
  }

  void run() {
    const Program& first = world_.programs[static_cast<std::size_t>(by_place_[0])];
    const bool decides = first.kind != StepKind::evaluate;
    const bool carries = std::ranges::find(model_.carried, true) != model_.carried.end();
    for (const bool previous : {true, false})
      for (const bool now : {true, false})
        if ((decides || now) && (carries || !previous || !decides) && (decides || previous) &&
            !findings_.full())
          follow({.previous = previous, .now = now});
  }

 private:
  const Program& at_place(std::size_t place) const {
    return world_.programs[static_cast<std::size_t>(by_place_[place])];
  }

  void check_arguments() {
    const auto places = static_cast<std::size_t>(world_.mesh.pipeline);
    by_place_.assign(places, -1);
    for (int rank = 0; rank < world_.mesh.world(); ++rank) {
      const int index =
          world_.program_of_rank.empty() ? 0 : world_.program_of_rank.at(static_cast<std::size_t>(rank));
      int& known = by_place_[static_cast<std::size_t>(world_.mesh.place(rank, Axis::pipeline))];
      if (known >= 0 && known != index)
        throw UsageError(fmt::format(
            "prove: rank {} runs program {}, and another rank of its pipeline place {}", rank, index, known));
      known = index;
    }
    for (std::size_t place = 0; place < places; ++place) {
      if (at_place(place).pipeline_rank != static_cast<int>(place))
        throw UsageError(fmt::format("prove: pipeline rank {} runs a program for pipeline rank {}", place,
                                     at_place(place).pipeline_rank));
      for (const Buffer& buffer : at_place(place).buffers)
        if (buffer.flat >= static_cast<FlatId>(model_.layout.flats().size()))
          throw UsageError(fmt::format("prove: '{}' is of flat {}, but the layout has {}", buffer.name,
                                       buffer.flat, model_.layout.flats().size()));
    }
  }

  // Who writes gradients, and which updates are left to the next step.
  void read_model() {
    model_.carried.resize(model_.layout.flats().size());
    for (std::size_t place = 0; place < by_place_.size(); ++place) {
      const Program& program = at_place(place);
      for (const Buffer& buffer : program.buffers)  // what is left there is for an update to come
        if (buffer.persistent && buffer.role == BufferRole::host_gradient)
          model_.carried[static_cast<std::size_t>(buffer.flat)] = true;
      std::map<std::tuple<UnitId, ParameterId>, int> uses;
      for (const Instruction& instruction : program.instructions) {
        if (instruction.op == Opcode::update) {
          model_.early |=
              instruction.when >= 0 && program.buffers[instruction.when].role == BufferRole::terms;
          if (program.is_carried(instruction)) {
            model_.carried_spread = instruction.operand(Role::gradient).region.spread;
          }
        }
        if (instruction.op != Opcode::use || instruction.edge == UseEdge::open || instruction.microbatch != 0)
          continue;
        for (const Operand& operand : instruction.operands)
          if (operand.role == Role::gradient)
            model_.writers[operand.region.parameter].insert(
                {instruction.unit, uses[{instruction.unit, operand.region.parameter}]++});
      }
    }
    // A parameter that no use writes has a gradient of zeros.
    for (ParameterId id = 0; id < model_.layout.parameters(); ++id) model_.writers[id];
  }

  void follow(Answers answers) {
    Messages messages;
    std::vector<int> squares(model_.layout.flats().size());
    std::vector<Follower> followers;
    followers.reserve(by_place_.size());
    for (const int index : by_place_)
      followers.emplace_back(world_.programs[static_cast<std::size_t>(index)], index, model_, answers, terms_,
                             messages, squares, findings_);
    for (bool went_on = true; went_on;) {
      went_on = false;
      for (Follower& follower : followers) went_on |= follower.follow();
    }
    for (std::size_t place = 0; place < followers.size(); ++place) {
      if (!followers[place].over()) {
        findings_.add(Fault::wrong_meaning, by_place_[place], {followers[place].next()},
                      fmt::format("{} waits for what nobody sends",
                                  describe(at_place(place), followers[place].next())));
        continue;
      }
      followers[place].finish();
    }
    if (at_place(0).kind == StepKind::train) check_squares(squares);
  }

  void check_squares(const std::vector<int>& squares) {
    for (FlatId flat = 0; flat < static_cast<FlatId>(squares.size()); ++flat) {
      const int taken = squares[static_cast<std::size_t>(flat)];
      if (taken == (model_.layout.flat(flat).trainable ? 1 : 0)) continue;
      findings_.add(Fault::wrong_meaning, by_place_[0], {},
                    fmt::format("the squares of flat {} are taken {} times for the norm", flat, taken));
    }
  }

  const WorldPrograms& world_;
  Findings& findings_;
  Terms terms_;
  Model model_;
  std::vector<int> by_place_;  // [pipeline coordinate] the program
};

}  // namespace

VerifyReport prove(const WorldPrograms& world, const Layout& layout) {
  if (world.programs.empty()) throw UsageError("prove: a world without programs");
  VerifyReport report;
  Findings findings(report.findings);
  World(world, layout, findings).run();
  return report;
}

VerifyReport prove_all(const Mesh& mesh, const Layout& layout, std::span<const RankPrograms> by_pipeline_rank,
                       const RunsOn& runs_on) {
  const std::vector<int> program_of_rank = mesh.places(Axis::pipeline);
  for (std::size_t index = 0; index < by_pipeline_rank.front().programs.size(); ++index) {
    std::vector<Program> programs;
    std::vector<PlannedProgram> plans;
    for (const RankPrograms& rank : by_pipeline_rank) {
      programs.push_back(rank.programs[index]);
      plans.push_back({rank.plan, static_cast<int>(index)});
    }
    const WorldPrograms world{.mesh = mesh,
                              .programs = programs,
                              .program_of_rank = program_of_rank,
                              .starts_in_order = runs_on.starts_in_order,
                              .issuer_runs = runs_on.issuer_runs};
    if (VerifyReport report = verify(world, plans); !report.ok()) return report;
    if (VerifyReport report = prove(world, layout); !report.ok()) return report;
  }
  for (const RankPrograms& rank : by_pipeline_rank)
    if (VerifyReport report = verify_turns(rank.programs, *rank.plan); !report.ok()) return report;
  return {};
}

void require_proved(const VerifyReport& report) {
  if (!report.ok())
    throw Error("the program does not verify; this is a defect of Tessera\n" + report.to_string());
}

}  // namespace tessera
