// What the launcher itself says, beside its ranks.
#pragma once

#include <cstdio>
#include <string>

namespace tessera::launching {

// A line on the standard error.
inline void note(const std::string& line) { std::fprintf(stderr, "tessera launch: %s\n", line.c_str()); }

}  // namespace tessera::launching
