// Checks enumerators that come from outside, such as a cast from a configuration or from another language.
#pragma once

#include <string>

#include "tessera/error.h"

namespace tessera {

// Throws UsageError naming `what` unless `value` is from 0 to `last`, the last enumerator.
template <class Enum>
void check_enumerator(const std::string& what, Enum value, Enum last) {
  const int number = static_cast<int>(value);
  if (number < 0 || number > static_cast<int>(last))
    throw UsageError(what + " has the value " + std::to_string(number) + "; its enumerators are 0 to " +
                     std::to_string(static_cast<int>(last)));
}

}  // namespace tessera
