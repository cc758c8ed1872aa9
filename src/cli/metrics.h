// The metrics file of a run: one line of JSON per step or evaluation, flushed, so that others can follow it.
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
  // Changes nothing yet but that there is a file, which is this one's alone as long as this lives.
  // EnvironmentError where it cannot be written or is another run's, UsageError where it holds what no run
  // wrote.
  explicit Metrics(const std::string& path);

  // Whether an earlier run's lines are there.
  bool begun() const { return begun_; }

  // Drops the lines of later steps, and one that was cut off: a run that continues writes them again. All at
  // step 0. Of `step` itself its evaluation, where that comes again.
  void rewind(std::int64_t step, bool evaluates_again);
  // Whether, when it was rewound, `step` itself was there without an evaluation.
  bool lacks_evaluation() const { return lacks_evaluation_; }
  // EnvironmentError where the disk refuses.
  void write(const nlohmann::json& line);
  // Of a run that failed: removes the file where this one made it and nothing is in it.
  void discard() noexcept;

 private:
  void open(std::ios::openmode mode);
  // What rewind() does not drop.
  std::string kept_lines(std::int64_t step, bool evaluates_again);
  void check_written(bool written) const;
  bool is_file() const;

  std::string path_;
  bool made_ = false, begun_ = false;
  bool printed_ = false;  // goes through the standard output
  bool lacks_evaluation_ = false;
  FileLock lock_;
  std::ofstream out_;
};

}  // namespace tessera::cli
