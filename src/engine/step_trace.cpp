#include "src/engine/step_trace.h"

#include <algorithm>

#include "tessera/device.h"
#include "tessera/program.h"
#include "tessera/simulate.h"

namespace tessera {
namespace {

bool may_wait(const Instruction& instruction) {
  return instruction.lane == Lane::compute && !instruction.waits.empty();
}

}  // namespace

// What could hide behind compute: what is exchanged with others, copies, the host's updates.
bool StepTrace::overlaps_compute(const Instruction& instruction) const {
  if (instruction.lane == Lane::compute || instruction.op == Opcode::square_sum) return false;
  return instruction.channel < 0 || mesh_.extent(program_->channels[instruction.channel].axis) > 1;
}

void StepTrace::set(bool on) {
  next_on_ = on;
  if (on) prepare();
}

void StepTrace::prepare() {
  if (marks_) return;
  std::size_t slots = 0, instructions = 0, waits = 0;
  for (const Program& program : programs_) {
    const auto waiting = static_cast<std::size_t>(std::ranges::count_if(program.instructions, may_wait));
    slots = std::max(slots, 2 * program.instructions.size() + 1 + waiting);
    instructions = std::max(instructions, program.instructions.size());
    waits = std::max(waits, waiting);
  }
  marks_ = device_.make_marks(slots);
  spans_.reserve(instructions);
  waited_.reserve(waits);
}

void StepTrace::start(const Program& program, Stream& compute) {
  on_ = next_on_;
  spans_.clear();
  waited_.clear();
  program_ = &program;
  if (!on_) return;
  marks_->begin(compute);
  start_ = device::Clock::now();
}

void StepTrace::waits(InstructionId id, Stream& compute) {
  if (!on_) return;
  marks_->mark(wait_of(waited_.size()), compute);
  waited_.push_back(id);
}

void StepTrace::issued(Stream& compute) {
  if (!on_) return;
  marks_->mark(last(), compute);
  issue_us_ = since_start_us();
}

double StepTrace::since_start_us() const {
  return std::chrono::duration<double, std::micro>(device::Clock::now() - start_).count();
}

void StepTrace::finish(InstructionId count) {
  if (!on_) return;
  on_ = false;  // what runs between steps is of none
  timing_ = {.total_us = since_start_us(), .issue_us = issue_us_};
  double end_us = 0;
  for (InstructionId id = 0; id < count; ++id) {
    const Instruction& instruction = program_->instructions[id];
    const TraceSpan span{id, instruction.lane, marks_->us(begin_of(id)), marks_->us(begin_of(id) + 1)};
    spans_.push_back(span);
    end_us = std::max(end_us, span.end_us);
    if (overlaps_compute(instruction)) timing_.communication_us += span.end_us - span.start_us;
  }
  // The thread may have been put aside between the marks' zero and its own.
  timing_.total_us = std::max(timing_.total_us, end_us);
  for (std::size_t k = 0; k < waited_.size(); ++k)
    timing_.exposed_us += marks_->us(begin_of(waited_[k])) - marks_->us(wait_of(k));
  timing_.exposed_us += std::max(0.0, end_us - marks_->us(last()));
}

}  // namespace tessera
