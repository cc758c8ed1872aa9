// The HTML document around memory_page()'s data, generated from memory_page.html.
#pragma once

#include <string_view>

namespace tessera {

// Holds the mark __DATA__ once, where a JSON object belongs.
extern const std::string_view kMemoryPage;

}  // namespace tessera
