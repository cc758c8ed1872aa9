// The small tokenizers in golden/, and texts with what the tokenizers library makes of them.
#pragma once

#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace tessera::test {

inline const std::filesystem::path kGolden = std::filesystem::path(TESSERA_SOURCE_DIR) / "tests/text/golden";
inline constexpr const char* kFamilies[] = {"gpt2",      "llama3", "qwen",          "mistral",
                                            "metaspace", "splits", "mistral_first", "tekken"};

inline std::string text_of(const std::filesystem::path& file) {
  std::ifstream in(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

inline std::string bytes_of_hex(const std::string& hex) {
  std::string bytes;
  for (std::size_t i = 0; i + 1 < hex.size(); i += 2)
    bytes.push_back(static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16)));
  return bytes;
}

inline nlohmann::json read_golden() { return nlohmann::json::parse(text_of(kGolden / "golden.json")); }

inline std::vector<std::string> golden_texts() {
  const nlohmann::json golden = read_golden();
  std::vector<std::string> texts;
  for (const nlohmann::json& hex : golden["texts"]) texts.push_back(bytes_of_hex(hex));
  return texts;
}

}  // namespace tessera::test
