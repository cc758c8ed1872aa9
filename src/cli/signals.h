// Signals that end a run: the first ends it after the step in progress, and one that comes a second or more
// later ends it at once.
#pragma once

#include <atomic>
#include <string>

namespace tessera::cli {

// Keeps SIGINT, SIGTERM and SIGHUP off the calling thread and all threads that it starts from now on; a
// thread that does nothing else receives them. Throws EnvironmentError where that cannot be started. Before
// oneDNN 3.11.2 the stack pointer may point into the heap during a product in fp32 (its issue 4845): a signal
// handler that interrupts one overwrites what lies there.
void keep_signals_off_threads();

// The first signal's number: the run ends after the step in progress. 0: none came.
extern std::atomic<int> stop_signal;

// From now on SIGINT, SIGTERM and SIGHUP, unless they are ignored, set stop_signal. The first of them also
// writes `line` to the standard error, unless `line` is empty. SIGPIPE and SIGXFSZ are ignored: output that
// nobody reads, and a file beyond its limit, become errors of write().
void catch_signals(const std::string& line);

}  // namespace tessera::cli
