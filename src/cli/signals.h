// Signals that end a run: the first ends it after the step in progress, and one that comes a second or more
// later ends it at once.
#pragma once

#include <atomic>
#include <string>

namespace tessera::cli {

// The first signal's number: the run ends after the step in progress. 0: none came.
extern std::atomic<int> stop_signal;

// From now on SIGINT, SIGTERM and SIGHUP, unless they are ignored, set stop_signal. The first of them also
// writes `line` to the standard error, unless `line` is empty. SIGPIPE and SIGXFSZ are ignored: output that
// nobody reads, and a file beyond its limit, become errors of write().
void catch_signals(const std::string& line);

}  // namespace tessera::cli
