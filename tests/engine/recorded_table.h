// The table of recorded hashes, and the key under which runs that differ between processors are recorded.
// Knows nothing of how a run is made.
#pragma once

#include <oneapi/dnnl/dnnl.h>

#include <cstdlib>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <utility>

#include "hwy/targets.h"
#include "tessera/error.h"
#include "tests/engine/recorded_runs.h"

namespace tessera::testing {

// The key of portable runs.
inline constexpr const char* kAnyProcessor = "any";

// The kernels' instruction sets on x86, best first. Sanitized builds compile the second for no kernel
// (kernels/CMakeLists.txt).
inline std::vector<std::int64_t> kernel_targets() {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  return {HWY_AVX3, HWY_SSE4};
#else
  return {HWY_AVX3, HWY_AVX2, HWY_SSE4};
#endif
}

inline std::string kernel_instructions() {
  for (const std::int64_t target : kernel_targets())
    if ((hwy::SupportedTargets() & target) != 0) return hwy::TargetName(target);
  return "other";
}

// ONEDNN_MAX_CPU_ISA for the kernels: restricts them to one of kernel_targets(), by Highway's name for it.
// Returns whether the processor has it.
inline bool restrict_kernels(const std::string& name) {
  hwy::SetSupportedTargetsForTest(0);
  for (const std::int64_t target : kernel_targets())
    if (name == hwy::TargetName(target) && (hwy::SupportedTargets() & target) != 0) {
      hwy::SetSupportedTargetsForTest(target);
      return true;
    }
  return false;
}

// What the bits of matrix products and attention depend on, beside the program: oneDNN's version, the
// instruction set that it chose (AVX2, AVX512_CORE_BF16, …, as a number), and the kernels' own.
inline std::string processor_key() {
  const dnnl_version_t* version = dnnl_version();
  std::ostringstream key;
  key << "onednn" << version->major << '.' << version->minor << '.' << version->patch << "-isa" << std::hex
      << static_cast<int>(dnnl_get_effective_cpu_isa()) << '-' << kernel_instructions();
  return key.str();
}

// In place of a hash that the table does not have: "-" in the file. A column that was changed on purpose is
// not known of processors on which nobody has recorded it since.
inline constexpr std::uint64_t kNotRecorded = 0;

class RecordedTable {
 public:
  using Place = std::pair<std::string, std::string>;  // name of the run, key

  explicit RecordedTable(const std::string& file) {
    std::ifstream in(file);
    for (std::string line; std::getline(in, line);) {
      if (line.empty() || line[0] == '#') continue;
      std::istringstream words(line);
      Place place;
      RunHashes of;
      std::string weights, losses, norms;
      words >> place.first >> place.second >> weights >> losses >> norms;
      const bool read = number(weights, of.weights) && number(losses, of.losses) && number(norms, of.norms);
      if (!words || !read)
        throw Error(file + " has a line that is not 'name key weights losses norms': " + line);
      rows_[place] = of;
    }
  }

  const std::map<Place, RunHashes>& rows() const { return rows_; }
  const RunHashes* find(const Place& place) const {
    const auto row = rows_.find(place);
    return row == rows_.end() ? nullptr : &row->second;
  }
  void set(const Place& place, const RunHashes& of) { rows_[place] = of; }
  void erase(const Place& place) { rows_.erase(place); }

  void write(const std::string& file) const {
    std::ofstream out(file);
    out << "# Written by engine_recorded_runs_test; recorded_runs_test.cpp says how.\n"
           "# run, key, hashes of weights, losses, norms\n";
    for (const auto& [place, of] : rows_)
      out << place.first << ' ' << place.second << ' ' << hex(of.weights) << ' ' << hex(of.losses) << ' '
          << hex(of.norms) << '\n';
    out.close();
    if (!out) throw EnvironmentError("cannot write " + file);
  }

  static std::string hex(std::uint64_t value) {
    if (value == kNotRecorded) return "-";
    std::ostringstream text;
    text << std::hex << value;
    return std::string(16 - text.str().size(), '0') + text.str();
  }

 private:
  static bool number(const std::string& word, std::uint64_t& value) {
    value = kNotRecorded;
    if (word == "-") return true;
    std::istringstream text(word);
    return static_cast<bool>(text >> std::hex >> value) && text.eof();
  }

  std::map<Place, RunHashes> rows_;
};

}  // namespace tessera::testing
