// Enumerators that come from outside, a cast of a configuration's or of another language's say.
#pragma once

#include <string>

#include "tessera/error.h"

namespace tessera {

// UsageError naming `what` unless its value is one of the enumerators, of which `last` is the last.
template <class Enum>
void check_enumerator(const std::string& what, Enum value, Enum last) {
  const int number = static_cast<int>(value);
  if (number < 0 || number > static_cast<int>(last))
    throw UsageError(what + " has the value " + std::to_string(number) + "; its enumerators are 0 to " +
                     std::to_string(static_cast<int>(last)));
}

}  // namespace tessera
