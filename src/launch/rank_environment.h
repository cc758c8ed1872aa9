// The variables by which a rank knows its place, and what they are made of.
#pragma once

#include <string>
#include <vector>

namespace tessera::launching {

// What all ranks of this host have in common.
struct Begin {
  std::string launch;        // TESSERA_LAUNCH
  int first_rank = 0;        // of this host
  int world = 0;             // ranks on all hosts
  std::string address = {};  // where rank 0 listens: MASTER_ADDR and MASTER_PORT
  int port = 0;
};

struct HostPlace {
  int host = 0, hosts = 1;
  int ranks = 1;  // of this host
};

// "NAME=value" for each variable that tells a rank of `host` where it is, `local` among the host's.
std::vector<std::string> rank_variables(const Begin& begin, const HostPlace& place, int local);
// This process's environment with these instead of what has their names.
std::vector<std::string> with_variables(const std::vector<std::string>& variables);
// Variables by which a process of this host's ranks is known, and all that these have started.
std::vector<std::string> marks(const Begin& begin, const HostPlace& place);

// 16 digits that no other launch has.
std::string draw_launch_id();
// A port that nobody listens on, and that the system gives to no connection that is made meanwhile.
int free_port();
// The variable that shows that a launcher started this process as a rank; nullptr: none does.
const char* rank_variable_that_is_set();

}  // namespace tessera::launching
