// What tells hosts apart.
#pragma once

#include <string>

namespace tessera::comm {

// The name of this process's host, and which start of its system this is.
std::string this_host();

}  // namespace tessera::comm
