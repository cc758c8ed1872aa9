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

// When each pass of a pipeline starts, were all of a kind equal and a message to take nothing.
class PassTimes {
 public:
  PassTimes() = default;
  PassTimes(PipelineSchedule schedule, const PipelineShape& shape, StepKind kind);

  // How long a pass takes then.
  int duration(Pass pass) const { return pass == Pass::backward && !split_ ? 2 : 1; }
  // −1 for one that the step has not.
  int start(int chunk, int microbatch, Pass pass) const { return starts_[at(chunk, microbatch, pass)]; }
  // Of all passes of the chunk.
  std::vector<int> starts(int chunk) const;

 private:
  std::size_t at(int chunk, int microbatch, Pass pass) const {
    const auto of = static_cast<std::size_t>(chunk) * kKinds + (pass == Pass::forward           ? 0U
                                                                : pass == Pass::weight_gradient ? 2U
                                                                                                : 1U);
    return of * microbatches_ + static_cast<std::size_t>(microbatch);
  }

  static constexpr std::size_t kKinds = 3;
  std::size_t microbatches_ = 0;
  bool split_ = false;
  std::vector<int> starts_;
};

}  // namespace tessera
