// How a chain of units is cut into chunks over the pipeline ranks, and the order in which each rank runs its
// chunks. Pure: a schedule is a function from shape and rank to a list of passes. build_step() turns the list
// into a program with messages, gathers and reductions.
#pragma once

#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "tessera/layout.h"
#include "tessera/pass.h"
#include "tessera/strategy.h"

namespace tessera {

// Units [first, end) of the chain, on one pipeline rank.
struct Chunk {
  UnitId first = 0;
  UnitId end = 0;
  int rank = 0;
};

// The chunks in the order of the chain. The schedule says which rank has a chunk: every rank has as many, and
// a chunk's neighbours are on neighbouring ranks.
class Partition {
 public:
  // Throws UsageError naming the field of strategy.pipeline if `units` cannot be cut in this way: for fewer
  // units than chunks, cuts that do not ascend within 1 .. units − 1, a number of cuts that does not give
  // `pipeline` · chunks, another number of chunks than the schedule has, and any setting that is not the
  // default with a single pipeline rank.
  Partition(int units, int pipeline, const Pipeline& options);

  std::span<const Chunk> chunks() const { return chunks_; }
  const Chunk& chunk(int index) const { return chunks_.at(index); }
  int chunk_of(UnitId unit) const { return chunk_of_.at(unit); }
  int rank_of(UnitId unit) const { return chunk(chunk_of(unit)).rank; }
  int ranks() const { return ranks_; }

 private:
  int ranks_;
  IdVector<Chunk> chunks_;
  IdVector<int> chunk_of_;  // by unit
};

// Cuts into `chunks` chunks that minimize the cost of the most expensive chunk. `cost` is by unit, and not
// negative. If `bytes` is given (by unit), no chunk holds more than `most_bytes`; empty if that is
// impossible. Throws UsageError unless 1 ≤ chunks ≤ units, and for `bytes` of another number of units.
std::vector<int> balanced_cuts(std::span<const double> cost, int chunks, std::span<const double> bytes = {},
                               double most_bytes = 0);

// One pass of one microbatch through one chunk.
struct ChunkPass {
  int chunk = 0;  // index among all chunks of the chain
  int microbatch = 0;
  // forward; backward with its recomputation; or, where the schedule splits it, weight_gradient.
  Pass pass = Pass::forward;
  bool operator==(const ChunkPass&) const = default;
};

struct PipelineShape {
  int ranks = 1;
  int chunks = 1;  // of each rank
  int microbatches = 1;
};

// The passes of pipeline rank `rank` in one training step, in order. Each chunk runs forward once and
// backward once for every microbatch, both in ascending order of microbatches, and each backward after its
// forward. So do weight gradients behind their backward, where the schedule splits it. The orders of all
// ranks together have no cycle, for any number of microbatches.
std::vector<ChunkPass> pipeline_order(PipelineSchedule schedule, const PipelineShape& shape, int rank);

// Whether the schedule runs the weight gradients of a backward later than the rest of it.
bool splits_backward(PipelineSchedule schedule);
// The name in configurations, and in a few words the order that it stands for.
std::string_view name_of(PipelineSchedule schedule);
std::string_view meaning_of(PipelineSchedule schedule);
std::vector<std::string_view> pipeline_schedule_names();
// Nothing for any other name.
std::optional<PipelineSchedule> pipeline_schedule_named(std::string_view name);

}  // namespace tessera
