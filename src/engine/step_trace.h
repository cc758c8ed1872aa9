// Times a step's instructions by marks of the device, each on the stream of its lane, and sums up what that
// says of the step. Nothing is allocated within a step.
#pragma once

#include <chrono>
#include <memory>
#include <span>
#include <vector>

#include "src/device/wait.h"
#include "tessera/device.h"
#include "tessera/engine.h"
#include "tessera/program.h"
#include "tessera/simulate.h"

namespace tessera {

class StepTrace {
 public:
  // `device` and `programs` outlive it.
  StepTrace(Device& device, const IdVector<Program>& programs, const Mesh& mesh)
      : device_(device), programs_(programs), mesh_(mesh) {}

  // Takes the marks, which a device may have memory of its own for.
  void prepare();
  // Of the next steps. Between steps: it takes the marks when first on, if they are not there.
  void set(bool on);
  bool next() const { return next_on_; }  // whether the next step is timed
  void start(const Program& program, Stream& compute);
  // The compute lane is about to wait for other lanes, before `id`.
  void waits(InstructionId id, Stream& compute);
  void begin(InstructionId id, Stream& stream) {
    if (on_) marks_->mark(begin_of(id), stream);
  }
  void end(InstructionId id, Stream& stream) {
    if (on_) marks_->mark(begin_of(id) + 1, stream);
  }
  // The compute lane has all of its instructions.
  void issued(Stream& compute);
  // Every lane is done; of the program's instructions the first `count` were issued.
  void finish(InstructionId count);

  const StepTiming& timing() const { return timing_; }
  std::span<const TraceSpan> spans() const { return spans_; }

 private:
  // Slots: two for each instruction, one where the compute lane is through, one for each of its waits.
  static std::size_t begin_of(InstructionId id) { return 2 * static_cast<std::size_t>(id); }
  std::size_t last() const { return 2 * program_->instructions.size(); }
  double since_start_us() const;
  bool overlaps_compute(const Instruction& instruction) const;
  std::size_t wait_of(std::size_t index) const { return last() + 1 + index; }

  Device& device_;
  const IdVector<Program>& programs_;
  const Mesh mesh_;
  std::unique_ptr<Marks> marks_;
  bool next_on_ = false;
  bool on_ = false;
  const Program* program_ = nullptr;
  device::Clock::time_point start_;
  double issue_us_ = 0;
  std::vector<InstructionId> waited_;  // what the compute lane waited before
  std::vector<TraceSpan> spans_;
  StepTiming timing_;
};

}  // namespace tessera
