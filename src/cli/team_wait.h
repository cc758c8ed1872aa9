// How the threads of a kernel's team wait for each other.
#pragma once

namespace tessera::cli {

// GNU's OpenMP has a thread that waits look for milliseconds before it sleeps. Where anything else wants its
// core, another rank or another program, the thread that it waits for then does not run, and a step takes
// many times as long. How often it looks is read once, when the library is loaded: so, unless the environment
// says it (OMP_WAIT_POLICY, GOMP_SPINCOUNT), this process begins anew with a number that looks for less
// than a hundred microseconds, which is longer than a step's gaps between teams. To be called first, with
// main()'s arguments. Where the program cannot be begun anew, threads wait as they did.
void wait_for_teams_briefly(char** argv);

}  // namespace tessera::cli
