// Output that several commands share: lines on a run, and the file of their result.
#pragma once

#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "src/cli/output.h"
#include "src/cli/places.h"
#include "src/cli/setup.h"

namespace tessera::cli {

// Prints what the user should know of values that were filled in, one line each.
void print_notes(const Config& config, std::FILE* to = stdout);

// "1,235,814,400 parameters", and how many of these are trained where not all are.
std::string parameters_text(const Model& model);

// Prints model, ranks and step, one line each, to stdout.
void print_model(const Setup& setup);

// Prints to stdout that matrices are multiplied in another type than the configuration names, if that is so.
void print_products(const Setup& setup);

// Prints to stdout whether the bytes that a rank needs keep within the budget `key`. Prints nothing without
// such a budget.
void print_budget(const char* key, std::int64_t budget, std::int64_t needed);

// The fingerprint and its facts.
nlohmann::json numerics_json(const Numerics& numerics);

// The file of --json: gets a command's result, or why there is none.
class ResultFile {
 public:
  // With an empty path, or with `writes` false because another process writes, nothing is written.
  ResultFile(std::string path, bool writes) : path_(std::move(path)), writes_(writes) {}

  NamedFile named() const { return {"--json", path_}; }
  // Call before the work. Throws EnvironmentError if the file cannot be written.
  void open();
  void write(const nlohmann::json& result);
  // Writes {"error": message}, also over an earlier result. Never overwrites a file that open() did not
  // check.
  void fail(std::string_view message) noexcept;

 private:
  std::string path_;
  bool writes_;
  OutputFile file_;
};

}  // namespace tessera::cli
