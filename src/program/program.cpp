#include "tessera/program.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <set>

#include "src/program/opcodes.h"

namespace tessera {

std::string_view name_of(Lane lane) {
  constexpr std::string_view kNames[] = {
      "compute", "gather",   "reduce", "send_output", "send_gradient", "receive_output", "receive_gradient",
      "upload",  "download", "host",   "io"};
  return kNames[static_cast<int>(lane)];
}

std::string_view name_of(Category category) {
  constexpr std::string_view kNames[] = {"parameters",  "gathered parameters", "gradients", "optimizer state",
                                         "activations", "communication",       "workspace"};
  return kNames[static_cast<int>(category)];
}

std::string_view name_of(Pass pass) {
  constexpr std::string_view kNames[] = {"forward", "recompute", "backward"};
  return kNames[static_cast<int>(pass)];
}

std::string_view name_of(StepKind kind) { return kind == StepKind::train ? "train" : "evaluate"; }

std::string_view name_of(Opcode opcode) {
  constexpr std::string_view kNames[] = {"use",  "all_gather", "reduce_scatter", "accumulate", "square_sum",
                                         "send", "receive",    "reduce_scalars", "update",     "copy"};
  return kNames[static_cast<int>(opcode)];
}

std::string describe(const Program& program, InstructionId id) {
  if (id < 0 || id >= static_cast<int>(program.instructions.size()))
    return fmt::format("#{} (no such instruction)", id);
  const Instruction& instruction = program.instructions[static_cast<std::size_t>(id)];
  std::string text = fmt::format("#{} ", id);
  if (instruction.op == Opcode::use) {
    if (instruction.edge == UseEdge::open) text += "opening ";
    if (instruction.edge == UseEdge::close) text += "closing ";
    if (instruction.selective) text += "selective ";
    text += name_of(instruction.pass);
  } else {
    if (instruction.carried) text += "carried ";
    text += name_of(instruction.op);
    if (instruction.op == Opcode::all_gather && !instruction.writes.empty())
      text +=
          program.buffers.at(static_cast<std::size_t>(instruction.writes[0])).category == Category::gradients
              ? " of gradients"
              : " of parameters";
    if (instruction.op == Opcode::copy && !instruction.reads.empty() && !instruction.writes.empty()) {
      const auto space = [&](BufferId of) {
        return name_of(program.buffers.at(static_cast<std::size_t>(of)).space);
      };
      text += fmt::format(" of '{}' from {} to {}",
                          program.buffers.at(static_cast<std::size_t>(instruction.reads[0])).name,
                          space(instruction.reads[0]), space(instruction.writes[0]));
    }
    if (is_message(instruction.op))
      text += instruction.flat >= 0 ? " of gradients"
              : instruction.lane == Lane::send_output || instruction.lane == Lane::receive_output
                  ? " of the output"
                  : " of the output's gradient";
  }
  if (instruction.unit >= 0)
    text += fmt::format(" of {}", program.units.at(static_cast<std::size_t>(instruction.unit)));
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

void add(Hasher& hasher, const Buffer& buffer) {
  hasher.add(buffer.name);
  for (std::int64_t value :
       {static_cast<std::int64_t>(buffer.role), static_cast<std::int64_t>(buffer.category),
        static_cast<std::int64_t>(buffer.space), static_cast<std::int64_t>(buffer.part),
        std::int64_t{buffer.unit}, std::int64_t{buffer.flat}, std::int64_t{buffer.index}, buffer.bytes,
        std::int64_t{buffer.persistent}, std::int64_t{buffer.one_address},
        static_cast<std::int64_t>(buffer.lifetimes.size())})
    hasher.add(value);
  for (const Lifetime& lifetime : buffer.lifetimes) {
    hasher.add(std::int64_t{lifetime.first});
    hasher.add(std::int64_t{lifetime.last});
  }
}

void add(Hasher& hasher, const Instruction& instruction) {
  for (std::int64_t value :
       {static_cast<std::int64_t>(instruction.op), static_cast<std::int64_t>(instruction.lane),
        static_cast<std::int64_t>(instruction.pass), static_cast<std::int64_t>(instruction.edge),
        std::int64_t{instruction.unit}, std::int64_t{instruction.flat}, std::int64_t{instruction.microbatch},
        std::int64_t{instruction.channel}, std::int64_t{instruction.peer},
        std::int64_t{instruction.selective}, std::int64_t{instruction.accumulate},
        std::int64_t{instruction.squares}, std::int64_t{instruction.carried}})
    hasher.add(value);
  hasher.add(instruction.waits);
  hasher.add(instruction.reads);
  hasher.add(instruction.writes);
}

void add(Hasher& hasher, const FlatBuffers& flat) {
  for (const BufferId buffer :
       {flat.parameter, flat.on_device, flat.on_host, flat.secondary, flat.gathered, flat.gradient,
        flat.local_sum, flat.accumulator, flat.reduced, flat.tied_sum, flat.master, flat.host_gradient,
        flat.update.gradient, flat.update.master, flat.update.parameter})
    hasher.add(std::int64_t{buffer});
  hasher.add(flat.moments);
  hasher.add(flat.update.moments);
}

void add(Hasher& hasher, const UnitBuffers& unit) {
  for (const PerMicrobatch* buffers : {&unit.output, &unit.output_gradient, &unit.saved, &unit.recomputable,
                                       &unit.saved_on_host, &unit.input_on_host})
    hasher.add(buffers->buffers);
  hasher.add(std::int64_t{unit.workspace});
}

}  // namespace

std::uint64_t Program::hash() const {
  Hasher hasher;
  hasher.add(static_cast<std::int64_t>(kind));
  hasher.add(std::int64_t{microbatches});
  hasher.add(std::int64_t{pipeline_rank});
  hasher.add(std::int64_t{state_over_replicas});
  hasher.add(std::int64_t{parameters_over_replicas});
  for (Placement placement : {placements.parameters, placements.gradients, placements.optimizer_state})
    hasher.add(static_cast<std::int64_t>(placement));
  for (const std::string& unit : units) hasher.add(unit);
  for (const Channel& channel : channels) {
    hasher.add(static_cast<std::int64_t>(channel.axis));
    hasher.add(static_cast<std::int64_t>(channel.lane));
  }
  for (const Buffer& buffer : buffers) add(hasher, buffer);
  for (const Instruction& instruction : instructions) add(hasher, instruction);
  for (const FlatBuffers& flat : flat_buffers) add(hasher, flat);
  for (const UnitBuffers& unit : unit_buffers) add(hasher, unit);
  hasher.add(batch.buffers);
  hasher.add(std::int64_t{square_sums});
  hasher.add(std::int64_t{scalars});
  hasher.add(std::int64_t{scalars_numel});
  return hasher.value();
}

int lifetime_at(const Buffer& buffer, InstructionId at) {
  if (buffer.persistent) return 0;
  const auto next =
      std::ranges::lower_bound(buffer.lifetimes, at, {}, [](const Lifetime& life) { return life.last; });
  if (next == buffer.lifetimes.end() || next->first > at) return -1;
  return static_cast<int>(next - buffer.lifetimes.begin());
}

std::vector<BufferOf> persistent_buffers(std::span<const Program> programs) {
  std::vector<BufferOf> found;
  std::set<std::string_view> seen;
  for (int program = 0; program < static_cast<int>(programs.size()); ++program) {
    const std::vector<Buffer>& buffers = programs[static_cast<std::size_t>(program)].buffers;
    for (BufferId id = 0; id < static_cast<BufferId>(buffers.size()); ++id) {
      const Buffer& buffer = buffers[static_cast<std::size_t>(id)];
      if (buffer.persistent && seen.insert(buffer.name).second) found.push_back({program, id});
    }
  }
  return found;
}

}  // namespace tessera
