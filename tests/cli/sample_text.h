// A text to train on.
#pragma once

#include <string>

namespace tessera::testing {

inline std::string sample_text(int lines) {
  std::string text;
  for (int i = 0; i < lines; ++i) text += "line " + std::to_string(i * 7919LL % 1000) + " of a text\n";
  return text;
}

}  // namespace tessera::testing
