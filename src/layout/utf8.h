// Recognizes well-formed UTF-8. Knows nothing of which characters can be printed.
#pragma once

#include <cstddef>
#include <string_view>

namespace tessera {

// The number of bytes of the well-formed UTF-8 character (RFC 3629) at the start of `text`; 0 if there is
// none. `text` must not be empty.
std::size_t utf8_bytes(std::string_view text);

}  // namespace tessera
