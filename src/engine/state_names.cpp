#include <cstddef>
#include <iterator>

#include "tessera/engine.h"

namespace tessera {

std::string_view name_of(StateKind state) {
  constexpr std::string_view kNames[] = {"master", "parameter", "moment1", "moment2"};
  const auto index = static_cast<std::size_t>(state);
  return index < std::size(kNames) ? kNames[index] : "such state";
}

}  // namespace tessera
