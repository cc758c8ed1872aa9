// Programs as text. A text is either refused in one line, or is, to the byte, the text of the program that it
// reads as. The same bytes as values make a program, whatever it means: its text reads as itself.
#include <optional>
#include <string_view>

#include "fuzz/fuzz.h"
#include "tessera/program_text.h"

using namespace tessera;

namespace {

// Nothing where it is refused as it should be.
std::optional<std::vector<Program>> accepted(std::string_view text) try {
  return parse_programs(text);
} catch (const UsageError& error) {
  const std::string_view message = error.what();
  fuzz::require(!message.empty() && message.find('\n') == message.npos, "a message is not one line");
  return {};
}

// Draws values from the input; zeros behind its end.
class Draws {
 public:
  explicit Draws(std::string_view bytes) : rest_(bytes) {}
  bool any() const { return !rest_.empty(); }
  int byte() {
    if (rest_.empty()) return 0;
    const auto value = static_cast<unsigned char>(rest_.front());
    rest_.remove_prefix(1);
    return value;
  }
  int below(int count) { return byte() % count; }
  bool coin() { return below(2) == 1; }
  template <class Enum>
  Enum one_of(int count) {
    return static_cast<Enum>(below(count));
  }
  // Near the ids that exist, and now and then any.
  int id() { return coin() ? below(8) - 2 : static_cast<int>(static_cast<unsigned>(wide())); }
  std::int64_t wide() {
    std::uint64_t value = 0;
    for (int k = 0; k < 8; ++k) value = value << 8U | static_cast<unsigned>(byte());
    return static_cast<std::int64_t>(value);
  }
  std::string text() {
    const std::string value(rest_.substr(0, static_cast<std::size_t>(below(6))));
    rest_.remove_prefix(value.size());
    return value;
  }
  Spread spread() {
    Spread spread;
    for (const Axis axis : {Axis::pipeline, Axis::replicate, Axis::shard, Axis::tensor, Axis::world})
      if (coin()) spread.axes = spread.axes.with(axis);
    if (coin()) spread.granule = {.kind = one_of<Granule::Kind>(3), .numel = wide()};
    return spread;
  }

 private:
  std::string_view rest_;
};

Buffer draw_buffer(Draws& from) {
  Buffer buffer{.name = from.text(),
                .role = from.one_of<BufferRole>(kBufferRoles),
                .category = from.one_of<Category>(kCategories),
                .space = from.one_of<Space>(kSpaces),
                .unit = from.id(),
                .flat = from.id(),
                .spread = from.spread(),
                .type = from.one_of<DType>(3),
                .index = from.id(),
                .bytes = from.wide(),
                .persistent = from.coin(),
                .one_address = from.coin(),
                .lifetimes = {}};
  for (int count = from.below(3); count > 0; --count) buffer.lifetimes.push_back({from.id(), from.id()});
  return buffer;
}

Operand draw_operand(Draws& from) {
  return {.role = from.one_of<Role>(kRoles),
          .buffer = from.id(),
          .region = {.kind = from.one_of<Region::Kind>(6),
                     .spread = from.spread(),
                     .parameter = from.id(),
                     .value = from.id()},
          .type = from.one_of<DType>(3),
          .access = from.one_of<Access>(4)};
}

Instruction draw_instruction(Draws& from) {
  Instruction instruction{.op = from.one_of<Opcode>(kOpcodes),
                          .lane = from.one_of<Lane>(kLanes),
                          .pass = from.one_of<Pass>(3),
                          .edge = from.one_of<UseEdge>(3),
                          .unit = from.id(),
                          .part = from.id(),
                          .microbatch = from.id(),
                          .channel = from.id(),
                          .peer = from.id(),
                          .when = from.id(),
                          .operands = {},
                          .waits = {}};
  for (int count = from.below(3); count > 0; --count) instruction.operands.push_back(draw_operand(from));
  for (int count = from.below(3); count > 0; --count) instruction.waits.push_back(from.id());
  return instruction;
}

Program draw_program(Draws& from) {
  Program program{.kind = from.one_of<StepKind>(3),
                  .microbatches = from.id(),
                  .pipeline_rank = from.id(),
                  .units = {},
                  .channels = {},
                  .buffers = {},
                  .instructions = {},
                  .scalars = from.id(),
                  .scalars_numel = from.id()};
  while (from.any()) {
    switch (from.below(4)) {
      case 0:
        program.units.push_back({.name = from.text()});
        for (int count = from.below(3); count > 0; --count) program.units.back().parts.push_back(from.text());
        break;
      case 1:
        program.channels.push_back({from.one_of<Axis>(kGroups), from.one_of<Lane>(kLanes)});
        break;
      case 2:
        program.buffers.push_back(draw_buffer(from));
        break;
      default:
        program.instructions.push_back(draw_instruction(from));
    }
  }
  return program;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t bytes) {
  const std::string_view input(reinterpret_cast<const char*>(data), bytes);
  if (const auto programs = accepted(input))
    fuzz::require(to_text(*programs) == input, "a text reads as another program's");
  Draws draws(input);
  const Program program = draw_program(draws);
  const Program again = parse_program(to_text(program));
  fuzz::require(again == program && again.hash() == program.hash(), "a program reads as another");
  return 0;
}
