// The HTML document around run_page()'s data, generated from run_page.html.
#pragma once

#include <string_view>

namespace tessera::cli {

// Contains __DATA__ once, as a placeholder for a JSON object.
extern const std::string_view kRunPage;

}  // namespace tessera::cli
