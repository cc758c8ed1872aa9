// The symbols of the running program, from its own file.
#pragma once

#include <compare>
#include <cstddef>
#include <map>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::emulated_cuda {

struct Function {
  std::string source;  // the file's name, without its folder; empty where others may have the same symbol
  std::string symbol;
  auto operator<=>(const Function&) const = default;
};

class Symbols {
 public:
  // Ends the process where the file has none: stripped, or not readable.
  static const Symbols& of_program();

  // Empty where no function begins there.
  Function function_at(const void* address) const;
  bool has(const Function& function) const;
  // The variables that are static in a function.
  std::vector<std::span<std::byte>> statics_of(const Function& function) const;

 private:
  Symbols();

  struct Variable {
    std::string symbol;
    std::span<std::byte> bytes;
  };
  std::map<const void*, Function> functions_;
  std::set<Function> names_;                                // of these
  std::map<std::string, std::vector<Variable>> variables_;  // static in functions, by source
};

}  // namespace tessera::emulated_cuda
