// Text to programs; include/tessera/program_text.h has the grammar.
#include <fmt/format.h>

#include <algorithm>

#include "src/program/text_line.h"
#include "src/program/text_words.h"
#include "tessera/error.h"
#include "tessera/program_text.h"

namespace tessera {
namespace {

// Reads the lines of one program, its heading first.
class Parser {
 public:
  explicit Parser(TextLine& heading) {
    program_.kind = heading.one<StepKind>();
    heading.expect("microbatches");
    program_.microbatches = heading.number<int>();
    heading.expect("pipeline_rank");
    program_.pipeline_rank = heading.number<int>();
    if (heading.skip("last_round_ranks")) program_.last_round_ranks = heading.number<int>();
    if (heading.skip("blocks")) program_.blocks = heading.number<int>();
    program_.rests = heading.skip("rests");
    heading.expect_end();
  }

  void read(TextLine& line) {
    if (line.at_instruction()) {
      read_instruction(line);
    } else if (line.skip("buffer")) {
      read_buffer(line);
    } else if (line.skip("unit")) {
      read_unit(line);
    } else if (line.skip("channel")) {
      read_channel(line);
    } else if (line.skip("scalars")) {
      program_.scalars = buffer(line);
      line.expect("numel");
      program_.scalars_numel = line.number<int>();
    } else {
      line.refuse("a line begins with unit, channel, buffer, scalars, or #N for an instruction");
    }
    line.expect_end();
  }

  Program take() { return std::move(program_); }

 private:
  static int reference(TextLine& line, const References& among, std::string_view what) {
    if (line.next().starts_with('@')) return line.id();
    const TextLine before = line;
    const int id = among.find(line.name());
    if (id < 0) before.refuse(fmt::format("no {} above has that name", what));
    return id;
  }
  UnitId unit(TextLine& line) const { return reference(line, units_, "unit"); }
  BufferId buffer(TextLine& line) const { return reference(line, buffers_, "buffer"); }

  void read_unit(TextLine& line) {
    UnitOutline& unit = program_.units.emplace_back();
    units_.add(unit.name = line.name());
    bool exchanges = line.skip("exchanges"), pieces = !exchanges && line.skip("pieces");
    if (!exchanges && !pieces && line.skip("parts")) do
        unit.parts.push_back(line.name());
      while (!line.at_end() && !(exchanges = line.skip("exchanges")) && !(pieces = line.skip("pieces")));
    if (exchanges) do {
        ExchangedValue& made = unit.exchanged.emplace_back();
        made.value = line.number<ValueId>();
        line.expect("of");
        made.of = line.number<ValueId>();
      } while (!line.at_end() && !(pieces = line.skip("pieces")));
    if (pieces) do {
        ValuePiece& piece = unit.pieces.emplace_back();
        piece.value = line.number<ValueId>();
        line.expect("of");
        piece.of = line.number<ValueId>();
        read_bytes(line, piece.begin, piece.end);
      } while (!line.at_end());
  }

  static void read_bytes(TextLine& line, std::int64_t& begin, std::int64_t& end) {
    line.expect("bytes");
    begin = line.number<std::int64_t>();
    end = line.number<std::int64_t>();
  }

  void read_channel(TextLine& line) {
    Channel channel{.axis = line.one<Axis>()};
    line.expect("on");
    channel.lane = line.one<Lane>();
    program_.channels.push_back(channel);
  }

  void read_buffer(TextLine& line) {
    Buffer of{.name = line.name(), .role = line.one<BufferRole>(), .lifetimes = {}};
    line.expect("in");
    of.category = line.one<Category>();
    line.expect("on");
    of.space = line.one<Space>();
    if (line.skip("of")) of.unit = unit(line);
    if (line.skip("flat")) of.flat = line.number<FlatId>();
    if (line.skip("spread")) of.spread = line.spread();
    if (line.skip("type")) of.type = line.one<DType>();
    if (line.skip("index")) of.index = line.number<int>();
    of.bytes = line.number<std::int64_t>();
    line.expect("bytes");
    of.persistent = line.skip("persistent");
    of.one_address = line.skip("one_address");
    if (line.skip("lives")) do
        of.lifetimes.push_back(line.lifetime());
      while (!line.at_end());
    buffers_.add(of.name);
    program_.buffers.push_back(std::move(of));
  }

  void read_instruction(TextLine& line) {
    const TextLine before = line;
    if (line.instruction() != program_.instructions.count())
      before.refuse(fmt::format("instructions are numbered: the next is #{}", program_.instructions.count()));
    Instruction of{.op = line.one<Opcode>(), .operands = {}, .waits = {}};
    if (of.op == Opcode::use) {
      of.pass = line.one<Pass>();
    } else {
      of.pass = line.maybe<Pass>().value_or(Pass::forward);
    }
    of.edge = line.maybe<UseEdge>().value_or(UseEdge::whole);
    if (line.skip("part")) of.part = line.number<int>();
    line.expect("on");
    of.lane = line.one<Lane>();
    if (line.skip("of")) of.unit = unit(line);
    if (line.skip("microbatch")) of.microbatch = line.number<int>();
    of.channel = channel(line, of.lane);
    if (line.skip("contributors")) of.contributors.count = line.number<int>();
    if (line.skip("from")) of.contributors.first = line.number<int>();
    if (line.skip("wire")) of.wire = line.one<DType>();
    if (line.skip("peer")) of.peer = line.number<int>();
    if (line.skip("when")) of.when = buffer(line);
    if (line.skip("waits")) do
        of.waits.push_back(line.instruction());
      while (line.at_instruction());
    if (line.skip(":")) do
        of.operands.push_back(operand(line));
      while (line.skip(","));
    program_.instructions.push_back(std::move(of));
  }

  int channel(TextLine& line, Lane lane) const {
    if (line.skip("channel")) return line.number<int>();
    if (!line.skip("over")) return -1;
    const TextLine before = line;
    const Channel wanted{.axis = line.one<Axis>(), .lane = lane};
    const auto found = std::ranges::find(program_.channels, wanted);
    if (found == program_.channels.end())
      before.refuse(fmt::format("no channel above is along that axis and on {}", name_of(lane)));
    return static_cast<int>(found - program_.channels.begin());
  }

  Operand operand(TextLine& line) const {
    Operand of{.role = line.one<Role>(), .access = line.one<Access>()};
    of.buffer = buffer(line);
    of.region = region(line);
    if (is_of_flat(of.region.kind)) {
      of.type = line.one<DType>();
    } else {
      of.type = line.maybe<DType>().value_or(DType::fp32);
    }
    return of;
  }

  static Region region(TextLine& line) {
    Region of{.kind = line.maybe<Region::Kind>().value_or(Region::Kind::all)};
    if (of.kind == Region::Kind::part) of.spread = line.spread();
    if (of.kind == Region::Kind::parameter) of.parameter = line.number<ParameterId>();
    if (of.kind == Region::Kind::value) of.value = line.number<ValueId>();
    if (line.next() == "bytes") read_bytes(line, of.begin, of.end);
    if (line.skip("spread")) of.spread = line.spread();
    if (line.skip("of_parameter")) of.parameter = line.number<ParameterId>();
    if (line.skip("of_value")) of.value = line.number<ValueId>();
    return of;
  }

  Program program_;
  References units_, buffers_;
};

// The line at the start of `text`, and what is behind it.
std::string_view take_line(std::string_view& text) {
  const std::size_t end = text.find('\n');
  const std::string_view line = text.substr(0, end);
  text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
  return line;
}

// One program has one text: what reads as the same and is written otherwise is refused.
void check_printed(std::string_view text, std::string_view printed) {
  if (text == printed) return;
  for (int number = 1;; ++number) {
    const bool superfluous = printed.empty(), has_end = text.find('\n') != std::string_view::npos;
    const std::string_view found = take_line(text), right = take_line(printed);
    const TextLine line(found, number);
    if (superfluous) line.refuse("nothing more is needed");
    if (found != right) line.refuse(found, fmt::format("it must be written {}", quoted(right)));
    if (!has_end) line.refuse("", "a newline must end it");
  }
}

std::vector<Program> read_programs(std::string_view text) {
  std::vector<Program> programs;
  std::optional<Parser> parser;
  for (int number = 1; !text.empty(); ++number) {
    TextLine line(take_line(text), number);
    if (line.at_end()) continue;
    if (line.skip("tessera")) {
      line.expect("program");
      line.expect("1");  // of this format
      line.expect(":");
      if (parser) programs.push_back(parser->take());
      parser.emplace(line);
    } else if (!parser) {
      line.refuse("a program begins with 'tessera program 1: '");
    } else {
      parser->read(line);
    }
  }
  if (parser) programs.push_back(parser->take());
  return programs;
}

}  // namespace

std::vector<Program> parse_programs(std::string_view text) {
  std::vector<Program> programs = read_programs(text);
  check_printed(text, to_text(programs));
  return programs;
}

Program parse_program(std::string_view text) {
  std::vector<Program> programs = parse_programs(text);
  if (programs.size() != 1)
    throw UsageError(
        fmt::format("a program text holds {} programs; exactly one is needed here", programs.size()));
  return std::move(programs.front());
}

}  // namespace tessera
