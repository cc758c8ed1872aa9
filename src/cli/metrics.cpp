#include "src/cli/metrics.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>

#include "src/cli/output.h"
#include "tessera/error.h"

namespace tessera::cli {

namespace {

constexpr std::int64_t kLongestLine = 1 << 16;  // of ours

// The step that a line is of; beyond any for a line that is none of ours.
std::int64_t step_of(const std::string& line) {
  const auto parsed = nlohmann::json::parse(line, nullptr, false);
  if (!parsed.is_object() || !parsed.contains("step") || !parsed["step"].is_number_integer())
    return std::numeric_limits<std::int64_t>::max();
  return parsed["step"].get<std::int64_t>();
}

// False where the file is empty.
bool holds_metrics(const std::string& path) {
  std::ifstream in(path);
  std::string line(kLongestLine, '\0');
  in.read(line.data(), kLongestLine);
  line.resize(static_cast<std::size_t>(in.gcount()));
  if (line.empty()) return false;
  const std::size_t end = line.find('\n');
  const bool cut_off = end == std::string::npos && line.starts_with("{\"");  // of a run whose disk was full
  line.resize(std::min(end, line.size()));
  if (!cut_off && step_of(line) == std::numeric_limits<std::int64_t>::max())
    throw UsageError("run.metrics: '" + path +
                     "' holds something else than the metrics of a run, and would be written over; name "
                     "another file, or remove it");
  return true;
}

}  // namespace

Metrics::Metrics(const std::string& path) : path_(path), printed_(is_standard_output(path)) {
  if (printed_) return;
  std::error_code ignored;
  made_ = !std::filesystem::exists(path_, ignored) && !ignored;
  open(std::ios::app);
  if (!is_file()) return;
  lock_ = FileLock("run.metrics", path_);
  begun_ = holds_metrics(path_);
}

bool Metrics::is_file() const {
  std::error_code ignored;
  return !path_.empty() && !printed_ && std::filesystem::is_regular_file(path_, ignored);
}

void Metrics::open(std::ios::openmode mode) {
  errno = 0;
  out_.open(path_, mode);
  check_written(static_cast<bool>(out_));
}

void Metrics::check_written(bool written) const {
  if (!written)
    throw EnvironmentError("run.metrics: cannot write '" + path_ +
                           "': " + std::strerror(errno == 0 ? EIO : errno));
}

void Metrics::rewind(std::int64_t step, bool evaluates_again) {
  if (!is_file()) return;
  const std::string kept = step > 0 ? kept_lines(step, evaluates_again) : "";
  out_.close();
  // In its place: who follows the file, and its lock, stay with it. Lines that are kept begin it, unless it
  // holds others between them, and are then as they were, however this ends.
  errno = 0;
  std::fstream file(path_, std::ios::in | std::ios::out | std::ios::binary);
  check_written(file.write(kept.data(), static_cast<std::streamsize>(kept.size())).flush().good());
  check_written(::truncate(path_.c_str(), static_cast<off_t>(kept.size())) == 0);
  open(std::ios::app);
}

std::string Metrics::kept_lines(std::int64_t step, bool evaluates_again) {
  std::ifstream in(path_);
  std::string kept;
  for (std::string line; std::getline(in, line);) {
    const std::int64_t of = step_of(line);
    const bool evaluation = line.find("\"validation_") != std::string::npos;  // or that it was left out
    if (of == step) lacks_evaluation_ = !evaluation;                          // which is the step's last line
    if (of < step || (of == step && !(evaluation && evaluates_again))) kept += line + '\n';
  }
  return kept;
}

void Metrics::discard() noexcept {
  std::error_code ignored;
  if (made_ && std::filesystem::file_size(path_, ignored) == 0 && !ignored)
    std::filesystem::remove(path_, ignored);
}

void Metrics::write(const nlohmann::json& line) {
  if (path_.empty()) return;
  errno = 0;
  if (printed_) return check_written(write_to_standard_output(line.dump() + "\n"));
  out_ << line.dump() << std::endl;
  check_written(static_cast<bool>(out_));
}

}  // namespace tessera::cli
