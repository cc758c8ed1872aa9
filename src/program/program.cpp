#include "tessera/program.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <iterator>
#include <set>

#include "src/program/opcodes.h"

namespace tessera {

std::string_view name_of(Lane lane) {
  constexpr std::string_view kNames[] = {
      "compute", "gather",   "reduce", "send_output", "send_gradient", "receive_output", "receive_gradient",
      "upload",  "download", "host",   "io",          "exchange"};
  return kNames[static_cast<int>(lane)];
}

std::string_view name_of(Category category) {
  constexpr std::string_view kNames[] = {"parameters",  "gathered parameters", "gradients", "optimizer state",
                                         "activations", "communication",       "workspace", "cache"};
  return kNames[static_cast<int>(category)];
}

std::string_view name_of(Pass pass) {
  constexpr std::string_view kNames[] = {"forward", "recompute", "backward", "weight_gradient"};
  return kNames[static_cast<int>(pass)];
}

std::string_view name_of(StepKind kind) {
  constexpr std::string_view kNames[] = {"train", "evaluate", "finish"};
  return kNames[static_cast<int>(kind)];
}

std::string_view name_of(BufferRole role) {
  constexpr std::string_view kNames[] = {
      "parameter",     "uploaded",     "staged",    "secondary",   "gathered", "gradient",
      "local_sum",     "accumulator",  "block_sum", "replica_sum", "master",   "moment",
      "host_gradient", "state_window", "tied_sum",  "batch",       "output",   "output_gradient",
      "value",         "offloaded",    "workspace", "scalars",     "decision", "previous_decision",
      "terms",         "cache"};
  static_assert(std::size(kNames) == kBufferRoles);
  return kNames[static_cast<int>(role)];
}

std::string_view name_of(Role role) {
  constexpr std::string_view kNames[] = {
      "parameters",    "gradient",  "batch",   "input",   "output",   "output_gradient", "input_gradient",
      "value",         "workspace", "from",    "to",      "squares",  "scalars",         "decision",
      "next_decision", "master",    "moment1", "moment2", "parameter"};
  static_assert(std::size(kNames) == kRoles);
  return kNames[static_cast<int>(role)];
}

std::string_view name_of(Access access) {
  constexpr std::string_view kNames[] = {"read", "write", "add", "modify"};
  return kNames[static_cast<int>(access)];
}

std::string_view name_of(Region::Kind kind) {
  constexpr std::string_view kNames[] = {"all", "part", "parameter", "gaps", "value", "sum"};
  return kNames[static_cast<int>(kind)];
}

namespace {

// The buffers of the operands whose access is `wanted`, and `more` where it is one.
std::vector<BufferId> touched(const Instruction& instruction, bool (*wanted)(Access), BufferId more) {
  std::vector<BufferId> buffers;
  buffers.reserve(instruction.operands.size() + 1);
  for (const Operand& operand : instruction.operands)
    if (wanted(operand.access)) buffers.push_back(operand.buffer);
  if (more >= 0) buffers.push_back(more);
  std::ranges::sort(buffers);
  buffers.erase(std::unique(buffers.begin(), buffers.end()), buffers.end());
  return buffers;
}

}  // namespace

std::vector<BufferId> Instruction::reads() const { return touched(*this, tessera::reads, when); }
std::vector<BufferId> Instruction::writes() const { return touched(*this, tessera::writes, -1); }

bool Instruction::touches(BufferId buffer) const {
  return buffer == when ||
         std::ranges::any_of(operands, [&](const Operand& operand) { return operand.buffer == buffer; });
}

void Instruction::refuse(Role role) const {
  throw Error(fmt::format("an instruction ({}) has no operand '{}'", name_of(op), name_of(role)));
}

FlatId Program::flat_of(const Instruction& instruction) const {
  if (instruction.op == Opcode::use) return -1;
  for (const Operand& operand : instruction.operands)
    if (buffers[operand.buffer].flat >= 0) return buffers[operand.buffer].flat;
  return -1;
}

BufferId Program::persistent(FlatId flat, BufferRole role, int index) const {
  for (BufferId id = 0; id < buffers.count(); ++id) {
    const Buffer& buffer = buffers[id];
    if (buffer.persistent && buffer.flat == flat && buffer.role == role && buffer.index == index) return id;
  }
  return -1;
}

namespace {

std::string what_moves(const Program& program, const Instruction& instruction) {
  const BufferId from = instruction.buffer(Role::from), to = instruction.buffer(Role::to);
  if (instruction.lane == Lane::exchange && to >= 0) {
    const Region& region = instruction.operand(Role::to).region;
    return fmt::format(" for {}'{}'",
                       region.is_piece() ? fmt::format("bytes {} to {} of ", region.begin, region.end) : "",
                       program.buffers.at(to).name);
  }
  if (instruction.op == Opcode::all_gather && to >= 0)
    return program.buffers.at(to).category == Category::gradients ? " of gradients" : " of parameters";
  if (instruction.op == Opcode::copy && from >= 0 && to >= 0)
    return fmt::format(" of '{}' from {} to {}", program.buffers.at(from).name,
                       name_of(program.buffers.at(from).space), name_of(program.buffers.at(to).space));
  if (!is_message(instruction.op)) return {};
  if (program.flat_of(instruction) >= 0) return " of gradients";
  return instruction.lane == Lane::send_output || instruction.lane == Lane::receive_output
             ? " of the output"
             : " of the output's gradient";
}

}  // namespace

namespace {

// The name of a use's part, where it says more than its pass.
std::string part_of(const Program& program, const Instruction& use) {
  if (use.op != Opcode::use || use.part < 0 || use.unit < 0) return {};
  const IdVector<std::string>& parts = program.units.at(use.unit).parts;
  const std::string name = use.part < parts.count() ? parts[use.part] : fmt::format("part {}", use.part);
  return name == name_of(use.pass) ? "" : name;
}

}  // namespace

std::string describe(const Program& program, InstructionId id) {
  if (id < 0 || id >= program.instructions.count()) return fmt::format("#{} (no such instruction)", id);
  const Instruction& instruction = program.at(id);
  std::string text = fmt::format("#{} ", id);
  if (instruction.op == Opcode::use) {
    if (instruction.edge == UseEdge::open) text += "opening ";
    if (instruction.edge == UseEdge::close) text += "closing ";
    text += name_of(instruction.pass);
  } else {
    if (program.is_carried(instruction)) text += "carried ";
    text += name_of(instruction.op);
    text += what_moves(program, instruction);
  }
  if (instruction.unit >= 0) text += fmt::format(" of {}", program.units.at(instruction.unit).name);
  if (const std::string part = part_of(program, instruction); !part.empty())
    text += fmt::format(" ({})", part);
  if (instruction.microbatch >= 0) text += fmt::format(", microbatch {}", instruction.microbatch);
  if (is_message(instruction.op))
    text += fmt::format(", {} pipeline rank {}", instruction.op == Opcode::send ? "to" : "from",
                        instruction.peer);
  return text;
}

namespace {

// Feeds values to the hash one by one; padding between struct members never enters it.
class Hasher {
 public:
  Hasher() : state_(XXH3_createState()) { XXH3_64bits_reset(state_); }
  ~Hasher() { XXH3_freeState(state_); }
  Hasher(const Hasher&) = delete;
  Hasher& operator=(const Hasher&) = delete;

  void add(std::int64_t value) { XXH3_64bits_update(state_, &value, sizeof value); }
  void add(const std::string& text) {
    add(static_cast<std::int64_t>(text.size()));
    XXH3_64bits_update(state_, text.data(), text.size());
  }
  void add(std::span<const int> values) {
    add(static_cast<std::int64_t>(values.size()));
    for (int value : values) add(std::int64_t{value});
  }
  std::uint64_t value() const { return XXH3_64bits_digest(state_); }

 private:
  XXH3_state_t* state_;
};

void add(Hasher& hasher, const Spread& spread) {
  hasher.add(std::int64_t{spread.axes.bits()});
  hasher.add(static_cast<std::int64_t>(spread.granule.kind));
  hasher.add(spread.granule.numel);
}

void add(Hasher& hasher, const Operand& operand) {
  for (std::int64_t value :
       {static_cast<std::int64_t>(operand.role), std::int64_t{operand.buffer},
        static_cast<std::int64_t>(operand.region.kind), std::int64_t{operand.region.parameter},
        std::int64_t{operand.region.value}, operand.region.begin, operand.region.end,
        static_cast<std::int64_t>(operand.type), static_cast<std::int64_t>(operand.access)})
    hasher.add(value);
  add(hasher, operand.region.spread);
}

void add(Hasher& hasher, const Buffer& buffer) {
  hasher.add(buffer.name);
  for (std::int64_t value :
       {static_cast<std::int64_t>(buffer.role), static_cast<std::int64_t>(buffer.category),
        static_cast<std::int64_t>(buffer.space), static_cast<std::int64_t>(buffer.type),
        std::int64_t{buffer.unit}, std::int64_t{buffer.flat}, std::int64_t{buffer.index}, buffer.bytes,
        std::int64_t{buffer.persistent}, std::int64_t{buffer.one_address},
        static_cast<std::int64_t>(buffer.lifetimes.size())})
    hasher.add(value);
  add(hasher, buffer.spread);
  for (const Lifetime& lifetime : buffer.lifetimes) {
    hasher.add(std::int64_t{lifetime.first});
    hasher.add(std::int64_t{lifetime.last});
  }
}

void add(Hasher& hasher, const Instruction& instruction) {
  for (std::int64_t value :
       {static_cast<std::int64_t>(instruction.op), static_cast<std::int64_t>(instruction.lane),
        static_cast<std::int64_t>(instruction.pass), static_cast<std::int64_t>(instruction.edge),
        std::int64_t{instruction.unit}, std::int64_t{instruction.microbatch},
        std::int64_t{instruction.channel}, std::int64_t{instruction.peer}, std::int64_t{instruction.part},
        std::int64_t{instruction.contributors.first}, std::int64_t{instruction.contributors.count},
        static_cast<std::int64_t>(instruction.wire), std::int64_t{instruction.when},
        static_cast<std::int64_t>(instruction.operands.size())})
    hasher.add(value);
  for (const Operand& operand : instruction.operands) add(hasher, operand);
  hasher.add(instruction.waits);
}

}  // namespace

std::uint64_t Program::hash() const {
  Hasher hasher;
  hasher.add(static_cast<std::int64_t>(kind));
  hasher.add(std::int64_t{microbatches});
  hasher.add(std::int64_t{last_round_ranks});
  hasher.add(std::int64_t{blocks});
  hasher.add(std::int64_t{rests});
  hasher.add(std::int64_t{pipeline_rank});
  for (const std::size_t count : {units.size(), channels.size(), buffers.size(), instructions.size()})
    hasher.add(static_cast<std::int64_t>(count));
  for (const UnitOutline& unit : units) {
    hasher.add(unit.name);
    hasher.add(static_cast<std::int64_t>(unit.parts.size()));
    for (const std::string& part : unit.parts) hasher.add(part);
    hasher.add(static_cast<std::int64_t>(unit.exchanged.size()));
    for (const auto& [value, of] : unit.exchanged) {
      hasher.add(value);
      hasher.add(of);
    }
    hasher.add(static_cast<std::int64_t>(unit.pieces.size()));
    for (const auto& [value, of, begin, end] : unit.pieces)
      for (const std::int64_t fact : {std::int64_t{value}, std::int64_t{of}, begin, end}) hasher.add(fact);
  }
  for (const Channel& channel : channels) {
    hasher.add(static_cast<std::int64_t>(channel.axis));
    hasher.add(static_cast<std::int64_t>(channel.lane));
  }
  for (const Buffer& buffer : buffers) add(hasher, buffer);
  for (const Instruction& instruction : instructions) add(hasher, instruction);
  hasher.add(std::int64_t{scalars});
  hasher.add(std::int64_t{scalars_numel});
  return hasher.value();
}

const ValuePiece* UnitOutline::piece(ValueId value) const {
  const auto found = std::ranges::find(pieces, value, &ValuePiece::value);
  return found == pieces.end() ? nullptr : &*found;
}

int lifetime_at(const Buffer& buffer, InstructionId at) {
  if (buffer.persistent) return 0;
  const auto next =
      std::ranges::lower_bound(buffer.lifetimes, at, {}, [](const Lifetime& life) { return life.last; });
  if (next == buffer.lifetimes.end() || next->first > at) return -1;
  return static_cast<int>(next - buffer.lifetimes.begin());
}

std::vector<BufferOf> persistent_buffers(IdSpan<const Program> programs) {
  std::vector<BufferOf> found;
  std::set<std::string_view> seen;
  for (int program = 0; program < programs.count(); ++program) {
    const IdVector<Buffer>& buffers = programs[program].buffers;
    for (BufferId id = 0; id < buffers.count(); ++id) {
      const Buffer& buffer = buffers[id];
      if (buffer.persistent && seen.insert(buffer.name).second) found.push_back({program, id});
    }
  }
  return found;
}

}  // namespace tessera
