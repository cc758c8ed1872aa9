// What goes wrong on one rank while a world is made is thrown by all.
#pragma once

#include <string>

#include "tessera/communicator.h"
#include "tessera/id_vector.h"

namespace tessera::comm {

// Collective: runs `action` on this rank, and throws what it threw on any, as EnvironmentError with that
// rank's number; on all ranks the same.
template <class Action>
void do_together(Communicator& host, const char* what, const Action& action) {
  std::string trouble;
  try {
    action();
  } catch (const Error& error) {
    trouble = error.what();
  }
  const char own = trouble.empty() ? 0 : 1;
  IdVector<char> all(host.world());
  host.all_gather(&own, all.data(), sizeof own, {"set-up", what});
  for (int rank = 0; rank < host.world(); ++rank)
    if (all[rank] != 0)
      throw EnvironmentError("rank " + std::to_string(rank) + ": " +
                             broadcast_text(host, trouble, rank, {"set-up", what}));
}

}  // namespace tessera::comm
