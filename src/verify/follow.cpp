#include <fmt/format.h>

#include <algorithm>

#include "src/program/opcodes.h"
#include "src/verify/follow.h"

namespace tessera {

// Where the buffer's elements are those of a state: which.
Stored Follower::stored_in(BufferId id) const {
  const Buffer& of = buffer(id);
  const int number = of.index;
  switch (of.role) {
    case BufferRole::master:
      return Stored::master;
    case BufferRole::moment:
      return number == 0 ? Stored::moment1 : Stored::moment2;
    case BufferRole::state_window:
      return number < 0 ? Stored::master : number == 0 ? Stored::moment1 : Stored::moment2;
    default:
      return Stored::parameter;
  }
}

void Follower::begin() {
  for (BufferId id = 0; id < program_.buffers.count(); ++id) {
    const Buffer& of = buffer(id);
    if (of.flat >= 0 && of.bytes != numel_of(layout().flat(of.flat), of.spread) * bytes_of(of.type))
      findings_.add(
          Fault::wrong_meaning, index_, {},
          fmt::format("'{}' has {} bytes, which is not what the layout has of it", of.name, of.bytes));
    // Evaluations before have left it; one microbatch is all that such a program has.
    if (of.role == BufferRole::cache) contents_.hold(id, terms_.value(of.index, of.unit, 0));
    if (!of.persistent || of.flat < 0) continue;
    const bool carried = of.role == BufferRole::host_gradient;
    const Term holds = carried ? terms_.carried_gradient() : terms_.state(stored_in(id), 0);
    const Spread spread = carried ? finer(of.spread, model_.carried_spread) : of.spread;
    contents_.each(id, spread, [&](Term& term, int, int) { term = holds; });
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
  if (instruction.lane == Lane::exchange) {
    exchange(id);
    return true;
  }
  switch (instruction.op) {
    case Opcode::use:
      use(id);
      break;
    case Opcode::all_gather:
      return gather(id);
    case Opcode::reduce_scatter:
      return reduce(id);
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

void Follower::use(InstructionId id) {
  const Instruction& use = program_.at(id);
  if (!check_use(id)) return;
  for (const Operand& operand : use.operands) {
    const ValueId value = value_of(operand);
    if (operand.role == Role::parameters)
      check_state(id, operand, Stored::parameter, current(buffer(operand.buffer).flat), "reads");
    if (operand.role == Role::gradient) use_gradient(id, operand);
    if (value == kNoValue) continue;
    const Term term = term_of(use, value);
    if (reads(operand.access)) check_activation(id, operand, term);
    // What backward changes in place is nothing that others could read.
    const bool spoiled = operand.access == Access::modify && buffer(operand.buffer).role != BufferRole::cache;
    if (writes(operand.access)) contents_.hold(operand.buffer, spoiled ? kUndefined : term, operand.region);
  }
}

// An opened use has written when it is closed.
void Follower::use_gradient(InstructionId id, const Operand& operand) {
  const Instruction& use = program_.at(id);
  if (use.edge == UseEdge::open) return;
  const ParameterId home = operand.region.parameter;
  const int number = written_[{use.unit, home, use.microbatch}]++;
  const Term more = terms_.gradient({.unit = use.unit, .use = number, .microbatch = use.microbatch});
  contents_.each(operand.buffer, buffer(operand.buffer).spread, [&](Term& sum, int, int item) {
    if (item != contents_.item(home)) return;
    sum = operand.access == Access::add ? terms_.within(sum, more, operand.type) : more;
  });
}

// What a value of the instruction's unit, or one that units share, is called.
Term Follower::term_of(const Instruction& instruction, ValueId value) {
  const auto activation = [&](BufferRole role, UnitId unit) {
    return terms_.activation(role, unit, instruction.microbatch);
  };
  switch (value) {
    case SharedValue::batch:
      return activation(BufferRole::batch, -1);
    case SharedValue::input:
      return activation(BufferRole::output, instruction.unit - 1);
    case SharedValue::output:
      return activation(BufferRole::output, instruction.unit);
    case SharedValue::output_gradient:
      return activation(BufferRole::output_gradient, instruction.unit);
    case SharedValue::input_gradient:
      return activation(BufferRole::output_gradient, instruction.unit - 1);
    default:
      // The bytes of a piece stand where those of all of it would.
      if (const ValuePiece* piece = program_.units[instruction.unit].piece(value); piece != nullptr)
        return term_of(instruction, piece->of);
      return terms_.value(value, instruction.unit, instruction.microbatch);
  }
}

// All tensor ranks run one program, so what each gives is the same value of its own.
void Follower::exchange(InstructionId id) {
  const Instruction& instruction = program_.at(id);
  const Operand& from = instruction.operand(Role::from);
  const Operand& to = instruction.operand(Role::to);
  check_activation(id, from, term_of(instruction, from.region.value));
  const std::vector<ExchangedValue>& known = program_.units[instruction.unit].exchanged;
  if (std::ranges::find(known, ExchangedValue{to.region.value, from.region.value}) == known.end())
    report(id, fmt::format("makes value {} of value {}, of which it is not made", to.region.value,
                           from.region.value));
  contents_.hold(to.buffer, term_of(instruction, to.region.value), to.region);
}

const IdVector<Term>* Follower::meet(InstructionId id) {
  const Instruction& instruction = program_.at(id);
  const std::pair channel(program_.channels[instruction.channel].axis, instruction.lane);
  const FlatId flat = program_.flat_of(instruction);
  const Operand* const from = instruction.find(Role::from);
  own_.assign(static_cast<std::size_t>(contents_.place(flat, contents_.cells(), 0)), kUndefined);
  if (from != nullptr)
    contents_.each(from->buffer, from->region.spread,
                   [&](Term& term, int cell, int item) { own_[contents_.place(flat, cell, item)] = term; });
  if (!model_.several) return &own_;
  std::vector<IdVector<Term>>& brought = collectives_.brought[channel];
  if (collectives_.leads) return &brought.emplace_back(own_);
  std::size_t& met = met_[channel];
  if (met == brought.size()) return nullptr;
  const IdVector<Term>& others = brought[met++];
  if (others.size() == own_.size() && (from == nullptr || own_ == others)) return &others;
  report(id, "brings something else than the first rank of its group");
  return &own_;
}

bool Follower::gather(InstructionId id) {
  const Instruction& instruction = program_.at(id);
  const Axis axis = program_.channels[instruction.channel].axis;
  const Operand& to = instruction.operand(Role::to);
  const IdVector<Term>* const parts = meet(id);
  if (parts == nullptr) return false;
  const FlatId flat = buffer(to.buffer).flat;
  contents_.each(to.buffer, to.region.spread, [&](Term& term, int cell, int item) {
    const Term part = (*parts)[contents_.place(flat, cell & ~cell_bit(axis), item)];
    term = (cell & cell_bit(axis)) != 0 ? terms_.of_peer(axis, part) : part;
  });
  return true;
}

bool Follower::reduce(InstructionId id) {
  const Instruction& instruction = program_.at(id);
  const Axis axis = program_.channels[instruction.channel].axis;
  const Operand& to = instruction.operand(Role::to);
  const IdVector<Term>* const parts = meet(id);
  if (parts == nullptr) return false;
  const FlatId flat = buffer(to.buffer).flat;
  const bool alone = !model_.ranks.contains(axis);
  contents_.each(to.buffer, to.region.spread, [&](Term& sum, int cell, int item) {
    const Term own = (*parts)[contents_.place(flat, cell, item)];
    const Term peers = alone ? own : (*parts)[contents_.place(flat, cell | cell_bit(axis), item)];
    sum = terms_.over(axis, own, peers, to.access == Access::add ? sum : kZero, instruction.contributors);
  });
  if (instruction.find(Role::squares) != nullptr) take_squares(id, to);
  return true;
}

void Follower::accumulate(const Instruction& instruction) {
  const Operand& from = instruction.operand(Role::from);
  const Operand& to = instruction.operand(Role::to);
  contents_.each(to.buffer, to.region.spread, [&](Term& sum, int cell, int item) {
    const Term more = contents_.at(from.buffer, cell, item);
    sum = to.access == Access::add ? terms_.add(sum, more) : more;
  });
}

void Follower::copy(const Instruction& instruction) {
  const Operand& from = instruction.operand(Role::from);
  const Operand& to = instruction.operand(Role::to);
  if (to.region.kind == Region::Kind::all) {
    contents_.hold(to.buffer, contents_.held(from.buffer));
    return;
  }
  contents_.each(to.buffer, to.region.spread,
                 [&](Term& term, int cell, int item) { term = contents_.at(from.buffer, cell, item); });
}

void Follower::zero(const Instruction& instruction) {
  for (const Operand& operand : instruction.operands) {
    const Region& region = operand.region;
    const int only = region.kind == Region::Kind::gaps        ? contents_.gaps(buffer(operand.buffer).flat)
                     : region.kind == Region::Kind::parameter ? contents_.item(region.parameter)
                                                              : -1;
    contents_.each(operand.buffer, region.spread, [&](Term& term, int, int item) {
      if (only < 0 || item == only) term = kZero;
    });
  }
}

void Follower::send(const Instruction& instruction) {
  const Operand& from = instruction.operand(Role::from);
  Message& message = messages_[{program_.pipeline_rank, instruction.peer, instruction.lane}].emplace_back();
  if (from.region.kind == Region::Kind::all) {
    message.push_back(contents_.held(from.buffer));
    return;
  }
  contents_.each(from.buffer, from.region.spread, [&](Term& term, int, int) { message.push_back(term); });
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
    contents_.hold(to.buffer, take());
    return true;
  }
  contents_.each(to.buffer, to.region.spread, [&](Term& term, int, int) { term = take(); });
  return true;
}

}  // namespace tessera
