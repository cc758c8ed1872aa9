#include "tests/emulated_cuda/kernels.h"

#include <cxxabi.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <map>
#include <memory>
#include <mutex>
#include <sstream>

#include "tests/emulated_cuda/symbols.h"

namespace tessera::emulated_cuda {
namespace {

constexpr std::size_t kSharedAlignment = 16;

using Table = std::map<Function, KernelLimits>;

// Lines "[source] hash", and behind each those of its kernels.
const Table& read_table() {
  static Table& table = *new Table;
  if (!table.empty()) return table;
  std::ifstream file(EMULATED_CUDA_KERNEL_LIMITS);
  std::string source;
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with('[')) source = line.substr(1, line.find(']') - 1);
    if (line.starts_with('[') || line.starts_with('#')) continue;
    std::istringstream words(line);
    std::string symbol;
    KernelLimits limits;
    words >> symbol >> limits.most_threads;
    for (int& one : limits.registers) words >> one;
    for (int& one : limits.static_shared_bytes) words >> one;
    if (words) table[{source, symbol}] = limits;
  }
  if (!table.empty()) return table;
  std::fprintf(stderr, "emulated CUDA: no kernels in %s; scripts/kernel_limits.sh makes it\n",
               EMULATED_CUDA_KERNEL_LIMITS);
  std::abort();
}

std::string name_of(const std::string& symbol) {
  const std::unique_ptr<char, void (*)(void*)> text(
      abi::__cxa_demangle(symbol.c_str(), nullptr, nullptr, nullptr), &std::free);
  std::string name = text ? text.get() : symbol;
  for (const std::string_view drop : {"tessera::", "kernels::", "cuda::", "(anonymous namespace)::", "void "})
    for (std::size_t at = name.find(drop); at != std::string::npos; at = name.find(drop))
      name.erase(at, drop.size());
  int depth = 0;
  for (std::size_t i = 0; i < name.size(); ++i) {
    depth += name[i] == '<' ? 1 : name[i] == '>' ? -1 : 0;
    if (name[i] == '(' && depth == 0) return name.substr(0, i);
  }
  return name;
}

struct Known {
  std::mutex mutex;                       // guards the next
  std::map<const void*, Kernel> kernels;  // that were looked up
};
Known& known() {
  static auto* const one = new Known;
  return *one;
}

Kernel look_up(const void* address) {
  const Table& table = read_table();
  const Symbols& symbols = Symbols::of_program();
  const Function function = symbols.function_at(address);
  if (function.symbol.empty()) return {};
  // One without internal linkage is listed with the sources that launch it, all alike.
  const auto limits = std::ranges::find_if(table, [&](const auto& row) {
    return row.first.symbol == function.symbol &&
           (function.source.empty() || row.first.source == function.source);
  });
  return {.name = name_of(function.symbol),
          .shared = symbols.statics_of(function),
          .limits = limits == table.end() ? std::nullopt : std::optional(limits->second)};
}

Kernel& find(const void* address) {
  const std::lock_guard lock(known().mutex);
  const auto found = known().kernels.find(address);
  return found != known().kernels.end() ? found->second : known().kernels[address] = look_up(address);
}

}  // namespace

const Architecture& architecture() {
  static const Architecture& one = [&]() -> const Architecture& {
    const char* const setting = std::getenv("EMULATED_CUDA_ARCHITECTURE");
    const int number = setting == nullptr ? 80 : std::atoi(setting);
    const auto found = std::ranges::find(kArchitectures, number, &Architecture::number);
    if (found != std::end(kArchitectures)) return *found;
    std::fprintf(stderr, "emulated CUDA: EMULATED_CUDA_ARCHITECTURE=%s; use 80, 90 or 100\n", setting);
    std::abort();
  }();
  return one;
}

std::size_t Kernel::static_shared_bytes() const {
  if (limits) return static_cast<std::size_t>(limits->static_shared_bytes[&architecture() - kArchitectures]);
  std::size_t sum = 0;
  for (const std::span<std::byte> one : shared)
    sum += (one.size() + kSharedAlignment - 1) / kSharedAlignment * kSharedAlignment;
  return sum;
}

Listed listed_kernels() {
  const std::lock_guard lock(known().mutex);
  Listed listed;
  for (const auto& [function, limits] : read_table()) {
    // One without internal linkage may be any object's.
    const bool found =
        Symbols::of_program().has(function) || Symbols::of_program().has({"", function.symbol});
    listed.found += found ? 1 : 0;
    ++listed.kernels;
  }
  return listed;
}

const Kernel& kernel_of(const void* address) { return find(address); }
void set_limits(const void* address, const KernelLimits& limits) { find(address).limits = limits; }

}  // namespace tessera::emulated_cuda
