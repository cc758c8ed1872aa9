// Makes the ranks of a collective fail or go on together.
#pragma once

#include <functional>

#include "tessera/engine.h"

namespace tessera::checkpoint {

// Runs `work` here; then all ranks learn how it went everywhere. Where it threw on any rank, every rank
// throws what the lowest of those threw: same type (UsageError, UnsupportedError or EnvironmentError), same
// message. A CommunicationError passes at once: the others learn of it by their own.
// Without a world, this process is alone.
void together(Communicator& world, const char* operation, const std::function<void()>& work);

// What save_checkpoint() and load_checkpoint(), `call`, ask of their arguments before any rank waits for
// another: that `world` is of the engine's ranks, and that the engine is between steps, with all updates
// done.
void check_arguments(const char* call, const Communicator& world, Engine& engine);

// Runs `work`, a verb of the engine's that `call` makes: a UsageError of it is told as one of `call`.
void told_as(const char* call, const char* verb, const std::function<void()>& work);

}  // namespace tessera::checkpoint
