// What goes wrong on one rank while a world is made is thrown by all.
#pragma once

#include <array>
#include <string>

#include "tessera/communicator.h"
#include "tessera/id_vector.h"

namespace tessera::comm {

// Collective: runs `action` on this rank, and throws what it threw on any, as EnvironmentError with that
// rank's number; on all ranks the same.
template <class Action>
void do_together(Communicator& host, const char* what, const Action& action) {
  struct Trouble {
    std::array<char, 1000> text{};
  };
  Trouble own;
  try {
    action();
  } catch (const Error& error) {
    std::string_view(error.what()).copy(own.text.data(), own.text.size() - 1);
  }
  IdVector<Trouble> all(host.world());
  host.all_gather(&own, all.data(), sizeof own, {"set-up", what});
  for (int rank = 0; rank < host.world(); ++rank)
    if (all[rank].text[0] != '\0')
      throw EnvironmentError("rank " + std::to_string(rank) + ": " + all[rank].text.data());
}

}  // namespace tessera::comm
