// The uses of one microbatch: the default order, and the rules that any order keeps.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "tessera/pipeline.h"
#include "tessera/program.h"
#include "tessera/step_spec.h"

namespace tessera {

// The uses of one microbatch of `spec`, default or given, cut to the forward ones for an evaluation.
// Throws UsageError, naming the use, for an order that means nothing.
std::vector<Use> uses_of(const Layout& layout, const StepSpec& spec);

// How long a pass of a pipeline takes, were all of a kind equal.
constexpr int duration_of(Pass pass) { return pass == Pass::forward ? 1 : 2; }

// When each then starts, were a message to take nothing.
class PassTimes {
 public:
  PassTimes() = default;
  PassTimes(PipelineSchedule schedule, const PipelineShape& shape, StepKind kind);

  // `pass` is forward or backward; −1 for one that the step has not.
  int start(int chunk, int microbatch, Pass pass) const { return starts_[at(chunk, microbatch, pass)]; }
  // Of all passes of the chunk.
  std::vector<int> starts(int chunk) const;

 private:
  std::size_t at(int chunk, int microbatch, Pass pass) const {
    const auto of = static_cast<std::size_t>(chunk) * 2 + (pass == Pass::forward ? 0 : 1);
    return of * microbatches_ + static_cast<std::size_t>(microbatch);
  }

  std::size_t microbatches_ = 0;
  std::vector<int> starts_;
};

}  // namespace tessera
