// Programs to text; include/tessera/program_text.h has the grammar.
#include <fmt/format.h>

#include <iterator>

#include "src/program/text_words.h"
#include "tessera/program_text.h"

namespace tessera {
namespace {

class Printer {
 public:
  explicit Printer(const Program& program) : program_(program) {
    for (const UnitOutline& unit : program.units) units_.add(unit.name);
    for (const Buffer& buffer : program.buffers) buffers_.add(buffer.name);
  }

  std::string print() {
    put("tessera program 1: {} microbatches {} pipeline_rank {}", word_of(program_.kind),
        program_.microbatches, program_.pipeline_rank);
    put_unless(0, "last_round_ranks", program_.last_round_ranks);
    put_unless(1, "blocks", program_.blocks);
    put_if(program_.rests, "rests");
    put("\n");
    for (const UnitOutline& unit : program_.units) {
      put("unit {}", quoted(unit.name));
      put_if(!unit.parts.empty(), "parts");
      for (const std::string& part : unit.parts) put(" {}", quoted(part));
      put_if(!unit.exchanged.empty(), "exchanges");
      for (const auto& [value, of] : unit.exchanged) put(" {} of {}", value, of);
      put_if(!unit.pieces.empty(), "pieces");
      for (const auto& [value, of, begin, end] : unit.pieces)
        put(" {} of {} bytes {} {}", value, of, begin, end);
      put("\n");
    }
    for (const Channel& channel : program_.channels)
      put("channel {} on {}\n", word_of(channel.axis), word_of(channel.lane));
    if (!program_.buffers.empty()) put("\n");
    for (const Buffer& buffer : program_.buffers) print(buffer);
    if (program_.scalars != -1 || program_.scalars_numel != 0)
      put("scalars {} numel {}\n", buffer(program_.scalars), program_.scalars_numel);
    if (!program_.instructions.empty()) put("\n");
    for (InstructionId id = 0; id < program_.instructions.count(); ++id) print(id);
    return std::move(text_);
  }

 private:
  template <class... Values>
  void put(fmt::format_string<Values...> format, Values&&... values) {
    fmt::format_to(std::back_inserter(text_), format, std::forward<Values>(values)...);
  }
  // " keyword value", unless it is the default.
  template <class Value>
  void put_unless(const Value& usual, std::string_view keyword, const Value& value) {
    if (value != usual) put(" {} {}", keyword, value);
  }
  void put_if(bool is, std::string_view word) {
    if (is) put(" {}", word);
  }

  std::string unit(UnitId id) const {
    return units_.text(
        id, program_.units, [](const UnitOutline& of) -> auto& { return of.name; });
  }
  std::string buffer(BufferId id) const {
    return buffers_.text(
        id, program_.buffers, [](const Buffer& of) -> auto& { return of.name; });
  }

  void print(const Buffer& of) {
    put("buffer {} {} in {} on {}", quoted(of.name), word_of(of.role), word_of(of.category),
        word_of(of.space));
    if (of.unit != -1) put(" of {}", unit(of.unit));
    put_unless(-1, "flat", of.flat);
    if (of.flat != -1 || of.spread != Spread{}) put(" spread {}", text_of(of.spread));
    if (of.flat != -1 || of.type != DType::fp32) put(" type {}", word_of(of.type));
    put_unless(0, "index", of.index);
    put(" {} bytes", of.bytes);
    put_if(of.persistent, "persistent");
    put_if(of.one_address, "one_address");
    put_if(!of.lifetimes.empty(), "lives");
    for (const Lifetime& life : of.lifetimes) put(" #{}-#{}", life.first, life.last);
    put("\n");
  }

  void print(InstructionId id) {
    const Instruction& of = program_.at(id);
    put("#{} {}", id, word_of(of.op));
    put_if(of.op == Opcode::use || of.pass != Pass::forward, word_of(of.pass));
    put_if(of.edge != UseEdge::whole, word_of(of.edge));
    put_unless(-1, "part", of.part);
    put(" on {}", word_of(of.lane));
    if (of.unit != -1) put(" of {}", unit(of.unit));
    put_unless(-1, "microbatch", of.microbatch);
    print_channel(of);
    put_unless(0, "contributors", of.contributors.count);
    put_unless(0, "from", of.contributors.first);
    if (of.wire != DType::fp32) put(" wire {}", word_of(of.wire));
    put_unless(-1, "peer", of.peer);
    if (of.when != -1) put(" when {}", buffer(of.when));
    put_if(!of.waits.empty(), "waits");
    for (const InstructionId other : of.waits) put(" #{}", other);
    for (std::size_t k = 0; k < of.operands.size(); ++k) {
      put("{} ", k == 0 ? ":" : ",");
      print(of.operands[k]);
    }
    put("\n");
  }

  void print_channel(const Instruction& of) {
    if (of.channel == -1) return;
    const int count = program_.channels.count();
    const Channel* channel = of.channel >= 0 && of.channel < count ? &program_.channels[of.channel] : nullptr;
    if (channel != nullptr && channel->lane == of.lane &&
        std::find(program_.channels.begin(), program_.channels.end(), *channel) ==
            program_.channels.begin() + of.channel)
      put(" over {}", word_of(channel->axis));
    else
      put(" channel {}", of.channel);
  }

  void print(const Operand& of) {
    put("{} {} {}", word_of(of.role), word_of(of.access), buffer(of.buffer));
    const Region& region = of.region;
    put_if(region.kind != Region::Kind::all, word_of(region.kind));
    if (region.kind == Region::Kind::part) put(" {}", text_of(region.spread));
    if (region.kind == Region::Kind::parameter) put(" {}", region.parameter);
    if (region.kind == Region::Kind::value) put(" {}", region.value);
    if (region.begin != 0 || region.end != 0) put(" bytes {} {}", region.begin, region.end);
    // What its kind has no use for, too.
    if (region.kind != Region::Kind::part && region.spread != Spread{})
      put(" spread {}", text_of(region.spread));
    if (region.kind != Region::Kind::parameter) put_unless(-1, "of_parameter", region.parameter);
    if (region.kind != Region::Kind::value) put_unless(kNoValue, "of_value", region.value);
    put_if(is_of_flat(region.kind) || of.type != DType::fp32, word_of(of.type));
  }

  const Program& program_;
  References units_, buffers_;
  std::string text_;
};

}  // namespace

std::string to_text(const Program& program) { return Printer(program).print(); }

std::string to_text(std::span<const Program> programs) {
  std::string text;
  for (const Program& program : programs) {
    if (!text.empty()) text += '\n';
    text += to_text(program);
  }
  return text;
}

}  // namespace tessera
