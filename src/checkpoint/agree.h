// Makes the ranks of a collective fail together or continue together.
#pragma once

#include <functional>

#include "tessera/engine.h"

namespace tessera::checkpoint {

// Runs `work` on this rank, then exchanges the outcomes of all ranks. If it threw on any rank, every rank
// throws what the lowest of those ranks threw: the same type (UsageError, UnsupportedError, or
// EnvironmentError for all other exceptions) with the same message, cut after 1019 bytes. A
// CommunicationError is thrown at once, without the exchange; the other ranks get their own. Without a world,
// this process is alone and only runs `work`.
void together(Communicator& world, const char* operation, const std::function<void()>& work);

// Checks the arguments of `call`, which is save_checkpoint() or load_checkpoint(): `world` must have as many
// ranks as the engine. Also does the engine's updates that are left (Engine::finish_updates), which is
// collective and requires the engine to be between steps.
void check_arguments(const char* call, const Communicator& world, Engine& engine);

// Runs `work`, in which `call` uses the engine's `verb`. A UsageError of the verb is thrown as one of `call`.
void told_as(const char* call, const char* verb, const std::function<void()>& work);

}  // namespace tessera::checkpoint
