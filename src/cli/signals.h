// What ends a run from outside: a first signal after the step in progress, a later one at once.
#pragma once

#include <atomic>
#include <string>

namespace tessera::cli {

// The first signal's number: the run ends after the step in progress. 0: none came.
extern std::atomic<int> stop_signal;

// From now on SIGINT, SIGTERM and SIGHUP, unless they are ignored, set stop_signal, and the first of them
// writes `line` to the standard error; empty: nothing. An output that nobody reads, and a limit on files, are
// errors of write().
void catch_signals(const std::string& line);

}  // namespace tessera::cli
