/* Rank 1 of two processes makes a mistake under TESSERA_MUST while rank 0 waits for it: both are to end with
   status 1, rank 0 by what it was told. */
#include "tessera/c_api.h"

static tessera_status run_rank(tessera_world* world, int argc, char** argv) {
  double values[1] = {1};
  int32_t rank;
  (void)argc;
  (void)argv;
  TESSERA_MUST(tessera_world_rank(world, &rank));
  TESSERA_MUST(tessera_world_all_reduce(world, TESSERA_SUM, values, 1));
  if (rank == 1) TESSERA_MUST(tessera_world_all_reduce(world, 7, values, 1));
  return tessera_world_barrier(world);
}

int main(int argc, char** argv) { return tessera_launch(argc, argv, 2, run_rank) == TESSERA_OK ? 0 : 1; }
