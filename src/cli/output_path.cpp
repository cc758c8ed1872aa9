#include "src/cli/output_path.h"

namespace tessera::cli {

std::string why_no_output(const std::string& path) {
  if (path.empty()) return "it is empty; name what to write to";
  if (path != "-") return "";
  return "it is \"-\"; name /dev/stdout for the standard output, or ./- for a file of that name";
}

}  // namespace tessera::cli
