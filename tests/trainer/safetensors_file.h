// A safetensors file taken apart by the tests' own reader, which shares no code with the library's.
#pragma once

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

namespace tessera::testing {

inline std::string bytes_of_file(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) throw std::runtime_error("cannot read " + path.string());
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

struct SafetensorsFile {
  nlohmann::json header;
  std::string data;

  explicit SafetensorsFile(const std::filesystem::path& path) {
    const std::string bytes = bytes_of_file(path);
    std::uint64_t length = 0;
    std::memcpy(&length, bytes.data(), 8);
    header = nlohmann::json::parse(bytes.substr(8, length));
    data = bytes.substr(8 + length);
  }
  std::string text() const {
    const std::string head = header.dump();
    const std::uint64_t length = head.size();
    std::string result(8, '\0');
    std::memcpy(result.data(), &length, 8);
    return result + head + data;
  }
  void write(const std::filesystem::path& path) const { std::ofstream(path, std::ios::binary) << text(); }

  std::vector<float> floats(const std::string& name) const { return values<float>(name, "F32"); }
  std::vector<std::int32_t> integers(const std::string& name) const {
    return values<std::int32_t>(name, "I32");
  }

 private:
  template <class T>
  std::vector<T> values(const std::string& name, const char* dtype) const {
    const nlohmann::json& tensor = header.at(name);
    if (tensor.at("dtype") != dtype) throw std::runtime_error(name + " is not of type " + dtype);
    const std::size_t begin = tensor.at("data_offsets")[0], end = tensor.at("data_offsets")[1];
    std::vector<T> values((end - begin) / sizeof(T));
    std::memcpy(values.data(), data.data() + begin, end - begin);
    return values;
  }
};

}  // namespace tessera::testing
