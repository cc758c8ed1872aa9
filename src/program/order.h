// The uses of one microbatch: the default order, and the rules that any order keeps.
#pragma once

#include <span>

#include <map>
#include <tuple>

#include "tessera/pipeline.h"
#include "tessera/program.h"

namespace tessera {

// The uses of one microbatch of `spec`, default or given, cut to the forward ones for an evaluation.
// Throws UsageError, naming the use, for an order that means nothing.
std::vector<Use> uses_of(const Layout& layout, const StepSpec& spec);

// When each pass of a pipeline starts, by chunk, microbatch and pass, were a forward to take 1, a backward 2,
// and a message nothing.
std::map<std::tuple<int, int, Pass>, int> pass_times(PipelineSchedule schedule, const PipelineShape& shape,
                                                     StepKind kind);

}  // namespace tessera
