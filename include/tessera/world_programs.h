// The programs of all ranks of a world, which are proved and simulated together.
#pragma once

#include <cstdint>
#include <span>

#include "tessera/id_vector.h"
#include "tessera/mesh.h"
#include "tessera/program.h"

namespace tessera {

// Which instructions the thread that issues them also runs. While it runs one, it issues nothing. On the CPU
// it runs the compute lane or, in strict order, everything but messages.
enum class IssuerRuns : std::uint8_t { nothing, compute, all_but_messages };

// The program that each rank runs. Ranks with the same program have the same index, and the program is proved
// once.
struct WorldPrograms {
  Mesh mesh;
  IdSpan<const Program> programs;      // distinct programs
  IdVector<int> program_of_rank = {};  // by rank, an index into `programs`; empty: all run programs[0]
  // Whether communication starts on each rank in the order of the program, over all lanes: none starts before
  // the communication that was issued earlier has started. NCCL orders its kernels on a GPU in this way
  // (NCCL_LAUNCH_ORDER_IMPLICIT).
  bool starts_in_order = false;
  IssuerRuns issuer_runs = IssuerRuns::nothing;

  // The index of the program that the rank runs.
  int program_of(int rank) const { return program_of_rank.empty() ? 0 : program_of_rank.at(rank); }
};

// WorldPrograms::program_of_rank, where `programs` has every pipeline coordinate, in their order, for each of
// `first_data_ranks`, which ascend from 0: a rank runs the programs of the last of these that its place
// along the shard axis reaches.
IdVector<int> programs_of_ranks(const Mesh& mesh, std::span<const int> first_data_ranks);

}  // namespace tessera
