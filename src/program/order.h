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

// How long a pass of a pipeline takes, were all of a kind equal.
constexpr int duration_of(Pass pass) { return pass == Pass::forward ? 1 : 2; }

// When each then starts, by chunk, microbatch and pass, were a message to take nothing.
std::map<std::tuple<int, int, Pass>, int> pass_times(PipelineSchedule schedule, const PipelineShape& shape,
                                                     StepKind kind);

}  // namespace tessera
