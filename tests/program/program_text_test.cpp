// Every field of a program is in its text and comes back from it; what is no text is refused by its line.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <random>
#include <set>

#include "tessera/error.h"
#include "tessera/program_text.h"
#include "tests/program/golden_programs.h"

namespace tessera::testing {
namespace {

// Every field has another value than its default.
Program full_program() {
  Program program{
      .kind = StepKind::finish,
      .microbatches = 3,
      .last_round_ranks = 2,
      .blocks = 4,
      .rests = true,
      .pipeline_rank = 2,
      .units = {{.name = "embed", .parts = {"forward", "again"}}, {.name = "it's \"all\" here: a, b"}},
      .channels = {{Axis::shard, Lane::gather}, {Axis::pipeline, Lane::receive_output}},
      .buffers = {},
      .instructions = {},
      .scalars = 1,
      .scalars_numel = 15};
  program.buffers.push_back({.name = "window",
                             .role = BufferRole::state_window,
                             .category = Category::optimizer_state,
                             .space = Space::host,
                             .unit = 1,
                             .flat = 4,
                             .spread = kSlice,
                             .type = DType::bf16,
                             .index = 1,
                             .bytes = 1024,
                             .persistent = true,
                             .one_address = true,
                             .lifetimes = {{0, 1}, {3, 4}}});
  program.buffers.push_back({.name = "scalars", .lifetimes = {}});
  program.buffers.push_back({.name = "decision", .role = BufferRole::decision, .lifetimes = {}});
  Instruction use{.op = Opcode::use,
                  .lane = Lane::receive_output,
                  .pass = Pass::recompute,
                  .edge = UseEdge::close,
                  .unit = 1,
                  .part = 3,
                  .microbatch = 2,
                  .channel = 1,
                  .peer = 1,
                  .contributors = {.first = 2, .count = 3},
                  .wire = DType::bf16,
                  .when = 2,
                  .operands = {},
                  .waits = {0, 7}};
  use.operands.push_back({.role = Role::moment2,
                          .buffer = 0,
                          .region = Region::part_of(kSlice),
                          .type = DType::fp16,
                          .access = Access::modify});
  use.operands.push_back({.role = Role::squares, .buffer = 1, .region = Region::sum_of(3)});
  use.operands.push_back({.role = Role::to, .buffer = 1});
  program.instructions.push_back(use);
  program.instructions.push_back({.op = Opcode::zero, .operands = {}, .waits = {}});
  return program;
}

struct Change {
  const char* field;
  std::function<void(Program&)> make;
};

Buffer& buffer(Program& of) { return of.buffers.front(); }
Instruction& instruction(Program& of) { return of.instructions.front(); }
Operand& operand(Program& of) { return instruction(of).operands.front(); }

// That these are all fields: another one does not compile here, and needs a row below.
void know_all_fields(const Program& program) {
  [[maybe_unused]] const auto& [kind, microbatches, last_round_ranks, blocks, rests, rank, units, channels,
                                buffers, instructions, scalars, numel] = program;
  [[maybe_unused]] const auto& [axis, lane] = channels[0];
  [[maybe_unused]] const auto& [name, role, category, space, unit, flat, spread, type, index, bytes,
                                persistent, one_address, lifetimes] = buffers[0];
  [[maybe_unused]] const auto& [first, last] = lifetimes[0];
  [[maybe_unused]] const auto& [op, on, pass, edge, of, part, microbatch, channel, peer, contributors, wire,
                                when, operands, waits] = instructions[0];
  [[maybe_unused]] const auto& [operand_role, touched, region, operand_type, access] = operands[0];
  [[maybe_unused]] const auto& [region_kind, region_spread, parameter, value, begin, end] = region;
  [[maybe_unused]] const auto& [axes, granule] = region_spread;
  [[maybe_unused]] const auto& [granule_kind, granule_numel] = granule;
}

const std::vector<Change>& changes() {
  static const std::vector<Change> all = {
      {"kind", [](Program& of) { of.kind = StepKind::evaluate; }},
      {"microbatches", [](Program& of) { of.microbatches = 4; }},
      {"last_round_ranks", [](Program& of) { of.last_round_ranks = 0; }},
      {"blocks", [](Program& of) { of.blocks = 1; }},
      {"rests", [](Program& of) { of.rests = false; }},
      {"pipeline_rank", [](Program& of) { of.pipeline_rank = 0; }},
      {"units", [](Program& of) { of.units.push_back({.name = "embed"}); }},
      {"a unit's name", [](Program& of) { of.units[0].name = "embed\n"; }},
      {"a unit's parts", [](Program& of) { of.units[0].parts.clear(); }},
      {"exchanges", [](Program& of) { of.units[0].exchanged = {{.value = 3, .of = -2}}; }},
      {"pieces", [](Program& of) { of.units[0].pieces = {{.value = 3, .of = -2, .begin = 0, .end = 16}}; }},
      {"exchanges and pieces",
       [](Program& of) {
         of.units[0].exchanged = {{.value = 3, .of = 2}};
         of.units[0].pieces = {{.value = 3, .of = 1, .begin = 0, .end = 16},
                               {.value = 4, .of = 1, .begin = 16, .end = 48}};
       }},
      {"a part's name", [](Program& of) { of.units[0].parts[1] = "it's"; }},
      {"channels", [](Program& of) { of.channels.push_back({}); }},
      {"a channel's axis", [](Program& of) { of.channels[1].axis = Axis::world; }},
      {"a channel's lane", [](Program& of) { of.channels[1].lane = Lane::host; }},
      {"scalars", [](Program& of) { of.scalars = 0; }},
      {"scalars_numel", [](Program& of) { of.scalars_numel = 0; }},
      {"buffers", [](Program& of) { of.buffers.push_back({}); }},
      {"name", [](Program& of) { buffer(of).name = "\x80"; }},
      {"name of another", [](Program& of) { buffer(of).name = "scalars"; }},
      {"role", [](Program& of) { buffer(of).role = BufferRole::terms; }},
      {"category", [](Program& of) { buffer(of).category = Category::gathered_parameters; }},
      {"space", [](Program& of) { buffer(of).space = Space::disk; }},
      {"unit", [](Program& of) { buffer(of).unit = -1; }},
      {"no such unit", [](Program& of) { buffer(of).unit = 99; }},
      {"flat", [](Program& of) { buffer(of).flat = -1; }},
      {"spread", [](Program& of) { buffer(of).spread = kShard; }},
      {"spread's axes",
       [](Program& of) {
         buffer(of).spread.axes = {Axis::world, Axis::tensor};
       }},
      {"granule's kind", [](Program& of) { buffer(of).spread.granule.kind = Granule::Kind::parameter; }},
      {"granule's numel", [](Program& of) { buffer(of).spread.granule.numel = 64; }},
      {"type", [](Program& of) { buffer(of).type = DType::fp32; }},
      {"index", [](Program& of) { buffer(of).index = -1; }},
      {"bytes", [](Program& of) { buffer(of).bytes = std::numeric_limits<std::int64_t>::min(); }},
      {"persistent", [](Program& of) { buffer(of).persistent = false; }},
      {"one_address", [](Program& of) { buffer(of).one_address = false; }},
      {"lifetimes", [](Program& of) { buffer(of).lifetimes.clear(); }},
      {"a lifetime's first", [](Program& of) { buffer(of).lifetimes[1].first = 2; }},
      {"a lifetime's last", [](Program& of) { buffer(of).lifetimes[1].last = -5; }},
      {"instructions", [](Program& of) { of.instructions.pop_back(); }},
      {"op", [](Program& of) { instruction(of).op = Opcode::copy; }},
      {"op without a pass", [](Program& of) { of.instructions[1].op = Opcode::use; }},
      {"lane", [](Program& of) { instruction(of).lane = Lane::host; }},
      {"pass", [](Program& of) { instruction(of).pass = Pass::forward; }},
      {"edge", [](Program& of) { instruction(of).edge = UseEdge::whole; }},
      {"an instruction's unit", [](Program& of) { instruction(of).unit = 0; }},
      {"microbatch", [](Program& of) { instruction(of).microbatch = -1; }},
      {"channel", [](Program& of) { instruction(of).channel = -1; }},
      {"channel of another lane", [](Program& of) { instruction(of).channel = 0; }},
      {"no such channel", [](Program& of) { instruction(of).channel = -2; }},
      {"peer", [](Program& of) { instruction(of).peer = 0; }},
      {"part", [](Program& of) { instruction(of).part = -1; }},
      {"contributors", [](Program& of) { instruction(of).contributors.count = 0; }},
      {"the first contributor", [](Program& of) { instruction(of).contributors.first = 0; }},
      {"wire", [](Program& of) { instruction(of).wire = DType::fp32; }},
      {"when", [](Program& of) { instruction(of).when = -1; }},
      {"no such buffer", [](Program& of) { instruction(of).when = 3; }},
      {"waits", [](Program& of) { instruction(of).waits = {}; }},
      {"a wait", [](Program& of) { instruction(of).waits[1] = 8; }},
      {"operands", [](Program& of) { instruction(of).operands.clear(); }},
      {"order of operands", [](Program& of) { std::swap(operand(of), instruction(of).operands[1]); }},
      {"an operand's role", [](Program& of) { operand(of).role = Role::parameters; }},
      {"an operand's buffer", [](Program& of) { operand(of).buffer = -1; }},
      {"an operand's type", [](Program& of) { operand(of).type = DType::bf16; }},
      {"type of a whole buffer", [](Program& of) { instruction(of).operands[2].type = DType::bf16; }},
      {"access", [](Program& of) { operand(of).access = Access::add; }},
      {"a region's spread", [](Program& of) { operand(of).region.spread = kWhole; }},
      {"a region's parameter", [](Program& of) { operand(of).region.parameter = 3; }},
      {"a sum's parameter", [](Program& of) { instruction(of).operands[1].region.parameter = -1; }},
      {"kind all", [](Program& of) { operand(of).region.kind = Region::Kind::all; }},
      {"kind parameter", [](Program& of) { operand(of).region.kind = Region::Kind::parameter; }},
      {"kind gaps", [](Program& of) { operand(of).region.kind = Region::Kind::gaps; }},
      {"a region's value", [](Program& of) { operand(of).region.value = SharedValue::output; }},
      {"kind value", [](Program& of) { operand(of).region = Region::of_value(2); }},
      {"a region's first byte", [](Program& of) { operand(of).region.begin = 8; }},
      {"a region's last byte", [](Program& of) { operand(of).region.end = 8; }},
      {"bytes of a value", [](Program& of) { operand(of).region = Region::of_value(2, 4, 8); }},
      {"kind sum", [](Program& of) { operand(of).region.kind = Region::Kind::sum; }},
  };
  return all;
}

void expect_round_trip(const Program& program, const std::string& what) {
  const std::string text = to_text(program);
  const Program again = parse_program(text);
  EXPECT_TRUE(again == program) << what << '\n' << text;
  EXPECT_EQ(again.hash(), program.hash()) << what;
  EXPECT_EQ(to_text(again), text) << what;
}

TEST(ProgramText, HasEveryField) {
  const Program full = full_program();
  know_all_fields(full);
  expect_round_trip(full, "unchanged");
  std::set<std::string> texts = {to_text(full)};
  std::set<std::uint64_t> hashes = {full.hash()};
  for (const Change& change : changes()) {
    Program changed = full_program();
    change.make(changed);
    EXPECT_FALSE(changed == full) << change.field;
    EXPECT_TRUE(texts.insert(to_text(changed)).second) << change.field << " is not in the text";
    EXPECT_TRUE(hashes.insert(changed.hash()).second) << change.field << " is not in the hash";
    expect_round_trip(changed, change.field);
  }
}

TEST(ProgramText, OfDefaultsIsShort) {
  EXPECT_EQ(to_text(Program{}), "tessera program 1: train microbatches 1 pipeline_rank 0\n");
  expect_round_trip({}, "defaults");
}

// Each enumerator, where it stands in a program.
TEST(ProgramText, HasEveryEnumerator) {
  const auto each = [](int count, const auto& set) {
    std::set<std::string> texts;
    for (int number = 0; number < count; ++number) {
      Program program = full_program();
      set(program, number);
      expect_round_trip(program, std::to_string(number));
      texts.insert(to_text(program));
    }
    EXPECT_EQ(texts.size(), static_cast<std::size_t>(count));
    Program program = full_program();
    set(program, count);
    EXPECT_THROW(to_text(program), UsageError);
  };
  each(3, [](Program& of, int k) { of.kind = static_cast<StepKind>(k); });
  each(kGroups, [](Program& of, int k) { of.channels[0].axis = static_cast<Axis>(k); });
  each(kLanes, [](Program& of, int k) { instruction(of).lane = static_cast<Lane>(k); });
  each(kCategories, [](Program& of, int k) { buffer(of).category = static_cast<Category>(k); });
  each(kSpaces, [](Program& of, int k) { buffer(of).space = static_cast<Space>(k); });
  each(kBufferRoles, [](Program& of, int k) { buffer(of).role = static_cast<BufferRole>(k); });
  each(3, [](Program& of, int k) { buffer(of).type = static_cast<DType>(k); });
  each(kOpcodes, [](Program& of, int k) { instruction(of).op = static_cast<Opcode>(k); });
  each(kPasses, [](Program& of, int k) { instruction(of).pass = static_cast<Pass>(k); });
  each(3, [](Program& of, int k) { instruction(of).edge = static_cast<UseEdge>(k); });
  each(kRoles, [](Program& of, int k) { operand(of).role = static_cast<Role>(k); });
  each(4, [](Program& of, int k) { operand(of).access = static_cast<Access>(k); });
  each(6, [](Program& of, int k) { operand(of).region.kind = static_cast<Region::Kind>(k); });
  each(3, [](Program& of, int k) {
    buffer(of).spread.granule = {.kind = static_cast<Granule::Kind>(k), .numel = 8};
  });
}

TEST(ProgramText, KeepsAnyName) {
  for (const std::string& name :
       {std::string(), std::string("'"), std::string("\\"), std::string("\\x41"), std::string("a b, c: #3"),
        std::string("\0\n\r\t\x7f", 5), std::string("Größe 数"), std::string("\xc3"),
        std::string("\xed\xa0\x80"), std::string("@0")}) {
    Program program = full_program();
    program.units[1].name = name;
    program.buffers[0].name = name;
    expect_round_trip(program, name);
    const std::string text = to_text(program);
    EXPECT_EQ(std::ranges::count(text, '\n'), std::ranges::count(to_text(full_program()), '\n'));
  }
  Program plain = full_program();
  plain.units[1].name = "Größe 数";
  EXPECT_NE(to_text(plain).find("unit 'Größe 数'\n"), std::string::npos);
}

TEST(ProgramText, NamesWhatItMeans) {
  EXPECT_EQ(
      to_text(full_program()),
      R"(tessera program 1: finish microbatches 3 pipeline_rank 2 last_round_ranks 2 blocks 4 rests
unit 'embed' parts 'forward' 'again'
unit 'it\'s "all" here: a, b'
channel shard on gather
channel pipeline on receive_output

buffer 'window' state_window in optimizer_state on host of 'it\'s "all" here: a, b' flat 4 )"
      R"(spread shard+replicate type bf16 index 1 1024 bytes persistent one_address lives #0-#1 #3-#4
buffer 'scalars' parameter in parameters on device 0 bytes
buffer 'decision' decision in parameters on device 0 bytes
scalars 'scalars' numel 15

#0 use recompute close part 3 on receive_output of 'it\'s "all" here: a, b' microbatch 2 )"
      R"(over pipeline contributors 3 from 2 wire bf16 peer 1 when 'decision' waits #0 #7: moment2 modify 'window' part shard+replicate )"
      R"(fp16, squares read 'scalars' sum of_parameter 3, to read 'scalars'
#1 zero on compute
)");
}

std::string refusal(const std::string& text) {
  try {
    parse_programs(text);
  } catch (const UsageError& error) {
    return error.what();
  }
  return "accepted";
}

// `found` in the full program's text becomes `instead`.
std::string refusal_of(const std::string& found, const std::string& instead) {
  std::string text = to_text(full_program());
  const std::size_t at = text.find(found);
  EXPECT_NE(at, std::string::npos) << found;
  return refusal(text.replace(at, found.size(), instead));
}

TEST(ProgramText, SaysWhatIsWrong) {
  const std::string start = "program text, line ";
  EXPECT_EQ(refusal("hello\n"), start + "1: found 'hello'; a program begins with 'tessera program 1: '");
  EXPECT_EQ(refusal_of("program 1", "program 2"), start + "1: found '2'; '1' is needed");
  EXPECT_EQ(refusal_of("finish", "trian"),
            start + "1: found 'trian'; the kind of program is needed: train, evaluate or finish");
  EXPECT_EQ(refusal_of("microbatches 3", "microbatches 3.5"),
            start + "1: found '3.5'; a whole number is needed");
  EXPECT_EQ(refusal_of("microbatches 3", "microbatches 3000000000"),
            start + "1: found '3000000000'; a whole number is needed");
  EXPECT_EQ(refusal_of("rests\n", "rests x\n"),
            start + "1: found 'x'; the line should end here, or a field is at the wrong place");
  EXPECT_EQ(refusal_of("unit 'embed' parts", "unit embed parts"),
            start + "2: found 'embed'; a name is needed, between single quotes");
  EXPECT_EQ(refusal_of("unit 'embed' parts 'forward' 'again'", "unit 'embed"),
            start + "2: found '\\'embed'; a single quote must end the name");
  EXPECT_EQ(refusal_of("unit 'embed'", "unit 'em\\bed'"),
            start + "2: found '\\\\bed'; a backslash stands before ' or \\, or as \\x0a");
  EXPECT_EQ(refusal_of("channel", "chanel"),
            start +
                "4: found 'chanel'; a line begins with unit, channel, buffer, scalars, or #N for an "
                "instruction");
  EXPECT_EQ(refusal_of("spread shard+replicate", "spread shard+rows"),
            start + "7: found 'shard+rows'; a spread is needed: all, shard or shard+replicate, say");
  EXPECT_EQ(refusal_of("#3-#4", "#3-4"), start + "7: found '#3-4'; a lifetime is needed, as #12-#15");
  EXPECT_EQ(refusal_of("scalars 'scalars'", "scalars 'scalar'"),
            start + "10: found '\\'scalar\\''; no buffer above has that name");
  EXPECT_EQ(refusal_of("over pipeline", "over tensor"),
            start + "12: found 'tensor'; no channel above is along that axis and on receive_output");
  EXPECT_EQ(refusal_of("modify", "modifies"),
            start + "12: found 'modifies'; the access is needed: read, write, add or modify");
  EXPECT_EQ(refusal_of("#1 zero", "#2 zero"),
            start + "13: found '#2'; instructions are numbered: the next is #1");
  EXPECT_EQ(refusal_of(" numel 15", ""), start + "10: the line ends; 'numel' is needed");
  EXPECT_EQ(refusal_of("when 'decision'", "when @x"),
            start + "12: found '@x'; a whole number is needed behind @");
}

// What means the same in other words is refused, too.
TEST(ProgramText, HasOneForm) {
  const std::string start = "program text, line ";
  EXPECT_EQ(
      refusal_of("pipeline_rank 2", "pipeline_rank  2"),
      start +
          "1: found 'tessera program 1: finish microbatches 3 pipeline_rank  2 la' …; it must be written "
          "'tessera program 1: finish microbatches 3 pipeline_rank 2 last_round_ranks 2 blocks 4 rests'");
  EXPECT_EQ(refusal_of("microbatches 3", "microbatches 03").substr(0, 27), start + "1: found");
  EXPECT_EQ(refusal_of("unit 'embed' parts 'forward' 'again'", "unit '\\x65mbed'"),
            start + "2: found 'unit \\'\\\\x65mbed\\''; it must be written 'unit \\'embed\\''");
  EXPECT_EQ(refusal_of("#1 zero on", "#1 zero forward on").substr(0, 28), start + "13: found");
  EXPECT_EQ(refusal_of("\n\n", "\n").substr(0, 27), start + "6: found");
  EXPECT_EQ(refusal_of("\n", "\r\n").substr(0, 22), start + "1: ");
  std::string text = to_text(full_program());
  EXPECT_EQ(refusal(text + "\n"), start + "14: the line ends; nothing more is needed");
  text.pop_back();
  EXPECT_EQ(refusal(text), start + "13: the line ends; a newline must end it");
}

TEST(ProgramText, HoldsSeveralPrograms) {
  const Program one = full_program(), two = Program{};
  const std::vector<Program> both = {one, two};
  const std::string text = to_text(both);
  EXPECT_EQ(text, to_text(one) + "\n" + to_text(two));
  EXPECT_TRUE(parse_programs(text) == both);
  EXPECT_EQ(to_text(std::vector<Program>{}), "");
  EXPECT_TRUE(parse_programs("").empty());
  for (const std::string& wrong : {text, std::string()}) EXPECT_THROW(parse_program(wrong), UsageError);
}

// A damaged text is refused in one line, or is the text of another program.
TEST(ProgramText, IsReadSafely) {
  std::mt19937 random(1);
  const auto draw = [&](std::size_t count) {
    return std::uniform_int_distribution<std::size_t>(0, count - 1)(random);
  };
  const std::string letters = "#@'\\:,- \n0159azx()+/";
  int refused = 0, accepted = 0;
  for (const GoldenPrograms& golden : golden_programs()) {
    const std::string text = to_text(golden.programs);
    for (int round = 0; round < 40; ++round) {
      std::string damaged = text;
      for (std::size_t damage = 0; damage <= draw(2); ++damage) {
        const std::size_t at = draw(damaged.size());
        if (round % 4 == 0) damaged.resize(at + 1);
        if (round % 4 == 1) damaged.erase(at, draw(9));
        if (round % 4 == 2) damaged.insert(at, 1, letters[draw(letters.size())]);
        if (round % 4 == 3) damaged[at] = letters[draw(letters.size())];
      }
      try {
        EXPECT_EQ(to_text(parse_programs(damaged)), damaged);
        ++accepted;
      } catch (const UsageError& error) {
        const std::string message = error.what();
        EXPECT_TRUE(message.starts_with("program text, line ")) << message;
        EXPECT_EQ(message.find('\n'), std::string::npos) << message;
        ++refused;
      }
    }
  }
  EXPECT_GT(refused, 100);
  EXPECT_GT(accepted, 0);
}

}  // namespace
}  // namespace tessera::testing
