// The metrics file of a run: one line of JSON per step or evaluation, flushed, so that others can follow it.
#pragma once

#include <cstdint>
#include <fstream>
#include <nlohmann/json_fwd.hpp>
#include <string>

namespace tessera::cli {

class Metrics {
 public:
  Metrics() = default;  // writes nowhere
  // Empties the file, or keeps it for a run that may continue. EnvironmentError where it cannot be written.
  Metrics(const std::string& path, bool keep);

  // Drops the lines of later steps, and one that was cut off: a run that continues writes them again.
  void rewind(std::int64_t step);
  // EnvironmentError where the disk refuses.
  void write(const nlohmann::json& line);

 private:
  void open(std::ios::openmode mode);
  void check_written() const;

  std::string path_;
  std::ofstream out_;
};

}  // namespace tessera::cli
