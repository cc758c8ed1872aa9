// Which file a command is.
#pragma once

#include <string>

namespace tessera::launching {

// Finds it as a shell does: a name with a slash is a path, another one is looked for in PATH. Where it is not
// there and is the name of this process's own program, that one. UsageError where there is no such file, or
// one that cannot be executed.
std::string find_command(const std::string& name);

}  // namespace tessera::launching
