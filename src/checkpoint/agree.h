// Makes the ranks of a collective fail or go on together.
#pragma once

#include <functional>

#include "tessera/communicator.h"

namespace tessera::checkpoint {

// Runs `work` here; then all ranks learn how it went everywhere. Where it threw on any rank, every rank
// throws what the lowest of those threw: same type (UsageError, UnsupportedError or EnvironmentError), same
// message. A CommunicationError passes at once: the others learn of it by their own.
// Without a world, this process is alone.
void together(Communicator& world, const char* operation, const std::function<void()>& work);

}  // namespace tessera::checkpoint
