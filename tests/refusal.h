// What the error of a call says.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "tessera/error.h"

namespace tessera::testing {

// "accepted" where nothing is thrown; another exception than `Expected` passes.
template <class Expected = UsageError>
std::string refusal(const std::function<void()>& body) {
  try {
    body();
  } catch (const Expected& error) {
    return error.what();
  }
  return "accepted";
}

inline void expect_words(const std::string& text, const std::vector<std::string>& words) {
  for (const std::string& word : words) EXPECT_NE(text.find(word), std::string::npos) << word << ": " << text;
}

}  // namespace tessera::testing
