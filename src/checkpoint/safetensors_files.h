// The safetensors files of one model, opened for reading: one file, or those that an index names.
#pragma once

#include <deque>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "src/checkpoint/safetensors_header.h"

namespace tessera::checkpoint {

inline constexpr const char* kSafetensors = "safetensors";  // of file errors
inline constexpr const char* kWholeName = "model.safetensors";
inline constexpr const char* kIndexName = "model.safetensors.index.json";

// The index's text: which file of the folder holds which tensor.
std::string encode_index(const std::map<std::string, std::string>& files, std::int64_t total_bytes);
// The same read; EnvironmentError where it is none, says something twice, or names a file outside its folder.
std::map<std::string, std::string> parse_index(std::string_view json, const std::string& source);

class SafetensorsFiles {
 public:
  struct Tensor {
    const FileReader* file = nullptr;
    TensorEntry entry;
  };

  // `path`: a file, an index, or a folder. Reads the headers only. EnvironmentError for what they contradict,
  // UsageError where there is nothing to read.
  explicit SafetensorsFiles(const std::filesystem::path& path);

  const std::string& source() const { return source_; }
  const std::map<std::string, Tensor>& tensors() const { return tensors_; }
  const Tensor* find(const std::string& name) const;  // null where there is none

 private:
  void open_index(const std::filesystem::path& path);
  void open_file(const std::filesystem::path& path, const std::map<std::string, std::string>* index);

  std::string source_;
  std::deque<FileReader> readers_;  // never move
  std::map<std::string, Tensor> tensors_;
};

}  // namespace tessera::checkpoint
