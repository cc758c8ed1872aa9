#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <ostream>
#include <set>

#include "tessera/simulate.h"

namespace tessera {
namespace {

nlohmann::json metadata(const char* what, int process, int lane, nlohmann::json arguments) {
  return {{"name", what}, {"ph", "M"}, {"pid", process}, {"tid", lane}, {"args", std::move(arguments)}};
}

nlohmann::json bar(const Program& program, const TraceSpan& span, int process) {
  const Instruction& instruction = program.instructions.at(span.instruction);
  nlohmann::json arguments = {{"instruction", span.instruction}};
  if (instruction.unit >= 0) arguments["unit"] = program.units.at(instruction.unit).name;
  if (instruction.microbatch >= 0) arguments["microbatch"] = instruction.microbatch;
  return {{"name", describe(program, span.instruction)},
          {"cat", std::string(name_of(instruction.op))},
          {"ph", "X"},
          {"pid", process},
          {"tid", static_cast<int>(span.lane)},
          {"ts", span.start_us},
          {"dur", span.end_us - span.start_us},
          {"args", std::move(arguments)}};
}

// Events of one file, in any number of processes.
class Trace {
 public:
  explicit Trace(std::ostream& out) : out_(out) { out_ << "{\"displayTimeUnit\":\"ms\",\"traceEvents\":["; }

  void add_process(const Program& program, std::span<const TraceSpan> spans, int process,
                   const std::string& name) {
    add(metadata("process_name", process, 0, {{"name", name}}));
    IdArray<bool, kLanes> used{};
    for (const TraceSpan& span : spans) used.at(span.lane) = true;
    for (int lane = 0; lane < kLanes; ++lane) {
      if (!used[lane]) continue;
      const std::string lane_name(name_of(static_cast<Lane>(lane)));
      add(metadata("thread_name", process, lane, {{"name", lane_name}}));
      add(metadata("thread_sort_index", process, lane, {{"sort_index", lane}}));
    }
    for (const TraceSpan& span : spans) add(bar(program, span, process));
  }

  void finish() { out_ << "\n]}\n"; }

 private:
  // A name that is not UTF-8 must not make the file unreadable.
  void add(const nlohmann::json& event) {
    out_ << (first_ ? "\n" : ",\n") << event.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
    first_ = false;
  }

  std::ostream& out_;
  bool first_ = true;
};

}  // namespace

void write_chrome_trace(std::ostream& out, const Program& program, std::span<const TraceSpan> spans,
                        int rank) {
  Trace trace(out);
  trace.add_process(program, spans, rank, fmt::format("rank {}", rank));
  trace.finish();
}

void write_chrome_trace(std::ostream& out, IdSpan<const Program> programs, const WorldTimeline& world) {
  Trace trace(out);
  std::set<int> written;  // pipeline ranks
  for (const RankTimeline& of : world.ranks) {
    const Program& program = programs[of.program];
    if (!written.insert(program.pipeline_rank).second) continue;
    trace.add_process(program, of.timeline.spans, program.pipeline_rank,
                      fmt::format("pipeline rank {}, rank {}", program.pipeline_rank, of.rank));
  }
  trace.finish();
}

}  // namespace tessera
