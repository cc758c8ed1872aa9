// The programs of all ranks of a world, as they are proved and simulated together.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "tessera/mesh.h"
#include "tessera/program.h"

namespace tessera {

// What the thread that issues a program's instructions runs itself: nothing behind such a one is issued
// before it has ended. On the CPU that is the compute lane or, in strict order, all but messages.
enum class IssuerRuns : std::uint8_t { nothing, compute, all_but_messages };

// The program each rank runs. Ranks that run the same program name the same index, and are proved once.
struct WorldPrograms {
  Mesh mesh;
  std::span<const Program> programs;      // distinct programs
  std::vector<int> program_of_rank = {};  // by rank, an index into `programs`; empty: all run programs[0]
  // What communicates starts, on each rank, in the order of its program, behind the start of what was issued
  // before, on whichever lane: so NCCL orders its kernels on a GPU (NCCL_LAUNCH_ORDER_IMPLICIT).
  bool starts_in_order = false;
  IssuerRuns issuer_runs = IssuerRuns::nothing;
};

}  // namespace tessera
