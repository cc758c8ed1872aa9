// Limits how long the threads of a kernel's team spin while they wait for each other.
#pragma once

namespace tessera::cli {

// In GNU's OpenMP a waiting thread spins for milliseconds before it sleeps. If another rank or program needs
// its core, the thread that it waits for does not run meanwhile, and a step takes many times as long. The
// library reads the number of spins once, when it is loaded. So this process restarts itself with
// GOMP_SPINCOUNT set to a number that spins for less than 100 µs, which is longer than a step's gaps between
// teams. It does not if the environment sets OMP_WAIT_POLICY or GOMP_SPINCOUNT. Call it first, with main()'s
// arguments. If the program cannot restart itself, threads wait as before.
void wait_for_teams_briefly(char** argv);

}  // namespace tessera::cli
