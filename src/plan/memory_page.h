// The HTML document around memory_page()'s data, generated from memory_page.html.
#pragma once

#include <string_view>

namespace tessera {

// Contains __DATA__ once, as a placeholder for a JSON object.
extern const std::string_view kMemoryPage;

}  // namespace tessera
