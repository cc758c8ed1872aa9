// The metrics file of a run: one line of JSON per step or evaluation, flushed at once, so that other programs
// can follow it.
#pragma once

#include <cstdint>
#include <fstream>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "src/cli/files.h"

namespace tessera::cli {

class Metrics {
 public:
  Metrics() = default;  // writes nowhere
  // Makes the file if there is none, and locks it while this object lives; changes nothing else yet. Throws
  // EnvironmentError if it cannot be written or is another run's, UsageError if it has contents that no run
  // wrote.
  explicit Metrics(const std::string& path);

  // Whether the file has lines of an earlier run.
  bool begun() const { return begun_; }

  // Drops the lines of later steps than `step`, and a line that was cut off: a run that continues writes them
  // again. Step 0 drops all lines. `evaluates_again` also drops the evaluation of `step` itself.
  void rewind(std::int64_t step, bool evaluates_again);
  // Whether rewind() found lines of `step` itself but no evaluation of it.
  bool lacks_evaluation() const { return lacks_evaluation_; }
  // Writes a line. Throws EnvironmentError if the disk refuses.
  void write(const nlohmann::json& line);
  // For a run that failed: removes the file if this object made it and it is empty.
  void discard() noexcept;

 private:
  void open(std::ios::openmode mode);
  // The lines that rewind() keeps.
  std::string kept_lines(std::int64_t step, bool evaluates_again);
  void check_written(bool written) const;
  bool is_file() const;

  std::string path_;
  bool made_ = false, begun_ = false;
  bool printed_ = false;  // whether it is written through the standard output
  bool lacks_evaluation_ = false;
  FileLock lock_;
  std::ofstream out_;
};

}  // namespace tessera::cli
