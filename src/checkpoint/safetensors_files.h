// Reads the safetensors files of one model: one file, or those that an index names.
#pragma once

#include <deque>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "src/checkpoint/safetensors_header.h"

namespace tessera::checkpoint {

inline constexpr const char* kSafetensors = "safetensors";  // names the kind of file in errors
inline constexpr const char* kWholeName = "model.safetensors";
inline constexpr const char* kIndexName = "model.safetensors.index.json";

// The index's text: which file of the folder holds which tensor.
std::string encode_index(const std::map<std::string, std::string>& files, std::int64_t total_bytes);
// Reads an index. Throws EnvironmentError if the text is not an index, has a key twice, or names a file
// outside its folder.
std::map<std::string, std::string> parse_index(std::string_view json, const std::string& source);

class SafetensorsFile;

// The one file of a model that is open: the one that was read last. There may be hundreds, and every rank of
// a process reads them; all together would be more than a process may have open.
struct LastFile {
  const SafetensorsFile* file = nullptr;
  std::unique_ptr<const FileReader> reader;
};

// One of the files. It is opened again if another was read since. One thread reads all files that share
// `last`.
class SafetensorsFile {
 public:
  SafetensorsFile(std::filesystem::path path, LastFile& last);
  SafetensorsFile(const SafetensorsFile&) = delete;
  SafetensorsFile& operator=(const SafetensorsFile&) = delete;

  const std::filesystem::path& path() const { return path_; }
  std::vector<TensorEntry> tensors() const { return read_tensors(opened()); }
  // Also throws EnvironmentError if the file was changed or replaced since its header was read.
  void read(std::int64_t offset, std::span<std::byte> data) const { opened().read(offset, data); }

 private:
  const FileReader& opened() const;

  std::filesystem::path path_;
  LastFile& last_;
  mutable std::optional<FileIdentity> identity_;  // set when it was first opened
};

class SafetensorsFiles {
 public:
  struct Tensor {
    const SafetensorsFile* file = nullptr;
    TensorEntry entry;
  };

  // `path` is a file, an index, or a folder. Reads the headers only. Throws EnvironmentError for
  // contradictions in them, UsageError if there is nothing to read.
  explicit SafetensorsFiles(const std::filesystem::path& path);
  SafetensorsFiles(const SafetensorsFiles&) = delete;
  SafetensorsFiles& operator=(const SafetensorsFiles&) = delete;

  const std::string& source() const { return source_; }
  const std::map<std::string, Tensor>& tensors() const { return tensors_; }
  const Tensor* find(const std::string& name) const;  // null if there is none

 private:
  void open_index(const std::filesystem::path& path);
  void open_file(const std::filesystem::path& path, const std::map<std::string, std::string>* index);

  std::string source_;
  LastFile last_;
  std::deque<SafetensorsFile> files_;  // never move
  std::map<std::string, Tensor> tensors_;
};

}  // namespace tessera::checkpoint
