// What is well-formed UTF-8. Knows nothing of which characters can be printed.
#pragma once

#include <cstddef>
#include <string_view>

namespace tessera {

// Bytes of the well-formed UTF-8 character (RFC 3629) at the start of `text`, which is not empty; 0 where
// there is none.
std::size_t utf8_bytes(std::string_view text);

}  // namespace tessera
