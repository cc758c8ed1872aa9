// A chain of units cut into chunks over the pipeline ranks, and the order in which each rank runs them. Pure:
// a schedule is a function from shape and rank to a list of compute, which build_step() turns into a program
// with its messages, gathers and reductions.
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

// The chain's chunks, in its order: chunk c is on rank c mod `pipeline`, so that a chunk's neighbours are on
// neighbouring ranks.
class Partition {
 public:
  // UsageError naming strategy.pipeline's field where `units` cannot be cut so: fewer units than chunks, cuts
  // that do not ascend within 1 .. units − 1, a count of cuts that does not make `pipeline` · chunks, several
  // chunks for a schedule that has one, or any of it with a single pipeline rank.
  Partition(int units, int pipeline, const Pipeline& options);

  std::span<const Chunk> chunks() const { return chunks_; }
  const Chunk& chunk(int index) const { return chunks_.at(static_cast<std::size_t>(index)); }
  int chunk_of(UnitId unit) const { return chunk_of_.at(static_cast<std::size_t>(unit)); }
  int rank_of(UnitId unit) const { return chunk(chunk_of(unit)).rank; }
  int ranks() const { return ranks_; }

 private:
  int ranks_;
  std::vector<Chunk> chunks_;
  std::vector<int> chunk_of_;  // by unit
};

// Cuts that make the dearest of `chunks` chunks as cheap as can be; `cost` is by unit, and none is negative.
// Where `bytes` is given (by unit), no chunk holds more than `most_bytes`. Empty where that cannot be.
std::vector<int> balanced_cuts(std::span<const double> cost, int chunks, std::span<const double> bytes = {},
                               double most_bytes = 0);

// One pass of one microbatch through one chunk.
struct ChunkPass {
  int chunk = 0;  // among all of the chain
  int microbatch = 0;
  Pass pass = Pass::forward;  // forward, or backward with what it recomputes
  bool operator==(const ChunkPass&) const = default;
};

struct PipelineShape {
  int ranks = 1;
  int chunks = 1;  // of each rank
  int microbatches = 1;
};

// The compute of pipeline rank `rank` in one training step. Each chunk runs forward and backward once for
// every microbatch, in ascending order of both, and a backward behind its forward; all ranks' orders together
// have no cycle, for any number of microbatches.
std::vector<ChunkPass> pipeline_order(PipelineSchedule schedule, const PipelineShape& shape, int rank);

// As configurations name it.
std::string_view name_of(PipelineSchedule schedule);
std::vector<std::string_view> pipeline_schedule_names();
// None for a name that is none of these.
std::optional<PipelineSchedule> pipeline_schedule_named(std::string_view name);

}  // namespace tessera
