// What several commands say alike: of a run, and as their result.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "src/cli/output.h"
#include "src/cli/places.h"
#include "src/cli/setup.h"

namespace tessera::cli {

// Model, ranks and step, a line each, to stdout.
void print_model(const Setup& setup);

// That matrices are multiplied otherwise than in the type that the configuration names, where that is so.
void print_products(const Setup& setup);

// Whether what a rank needs keeps within `key`, to stdout; nothing where there is no such budget.
void print_budget(const char* key, std::int64_t budget, std::int64_t needed);

// The fingerprint, and the facts that it is of.
nlohmann::json numerics_json(const Numerics& numerics);

// Where a command's result goes, or why there is none: --json.
class ResultFile {
 public:
  // Empty: nowhere. Nor is anything written where another process does that, `writes` false.
  ResultFile(std::string path, bool writes) : path_(std::move(path)), writes_(writes) {}

  NamedFile named() const { return {"--json", path_}; }
  // Before the work. EnvironmentError where it cannot be written.
  void open();
  void write(const nlohmann::json& result);
  // {"error": message}, in place of an earlier result, too. What was not opened goes over nothing else: the
  // path may then have been looked at by nobody.
  void fail(std::string_view message) noexcept;

 private:
  std::string path_;
  bool writes_;
  OutputFile file_;
};

}  // namespace tessera::cli
