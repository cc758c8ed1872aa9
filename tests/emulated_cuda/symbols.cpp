#include "tests/emulated_cuda/symbols.h"

#include <elf.h>
#include <link.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>

namespace tessera::emulated_cuda {
namespace {

constexpr std::string_view kStatic =
    "_ZZ";  // begins what is static in a function: _ZZ, the function, E, the name

std::string read_program() {
  std::ifstream file("/proc/self/exe", std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// How far from its symbols' values the program was loaded.
std::uintptr_t load_offset() {
  std::uintptr_t offset = 0;
  dl_iterate_phdr(
      [](dl_phdr_info* info, std::size_t, void* result) {
        *static_cast<std::uintptr_t*>(result) = info->dlpi_addr;
        return 1;  // the first is the program
      },
      &offset);
  return offset;
}

template <class T>
T read_at(const std::string& file, std::size_t offset) {
  T value;
  std::memcpy(&value, file.data() + offset, sizeof value);
  return value;
}

}  // namespace

const Symbols& Symbols::of_program() {
  static const auto* const one = new Symbols;
  return *one;
}

Symbols::Symbols() {
  const std::string file = read_program();
  const auto header = read_at<ElfW(Ehdr)>(file, 0);
  const std::uintptr_t offset = load_offset();
  const auto section = [&](std::size_t i) {
    return read_at<ElfW(Shdr)>(file, header.e_shoff + i * header.e_shentsize);
  };
  for (std::size_t i = 0; i < header.e_shnum; ++i) {
    const auto table = section(i);
    if (table.sh_type != SHT_SYMTAB) continue;
    const char* const names = file.data() + section(table.sh_link).sh_offset;
    std::string source;
    for (std::size_t at = 0; at < table.sh_size; at += table.sh_entsize) {
      const auto symbol = read_at<ElfW(Sym)>(file, table.sh_offset + at);
      const char* const name = names + symbol.st_name;
      const unsigned type = symbol.st_info & 0xf, binding = symbol.st_info >> 4;
      if (type == STT_FILE) source = name;
      const std::string own = binding == STB_LOCAL ? source : "";
      void* const place = reinterpret_cast<void*>(offset + symbol.st_value);
      if (type == STT_FUNC) {
        functions_[place] = {own, name};
        names_.insert({own, name});
      }
      if (type == STT_OBJECT && std::string_view(name).starts_with(kStatic))
        variables_[own].push_back({name, {static_cast<std::byte*>(place), symbol.st_size}});
    }
  }
  if (!functions_.empty()) return;
  std::fprintf(stderr, "emulated CUDA: the program has no symbols, from which shared memory is known\n");
  std::abort();
}

Function Symbols::function_at(const void* address) const {
  const auto found = functions_.find(address);
  return found == functions_.end() ? Function{} : found->second;
}

bool Symbols::has(const Function& function) const { return names_.contains(function); }

std::vector<std::span<std::byte>> Symbols::statics_of(const Function& function) const {
  std::vector<std::span<std::byte>> found;
  const auto of_source = variables_.find(function.source);
  if (of_source == variables_.end() || function.symbol.size() < 2) return found;
  const std::string prefix = std::string(kStatic) + function.symbol.substr(2) + "E";
  for (const Variable& variable : of_source->second)
    if (variable.symbol.starts_with(prefix)) found.push_back(variable.bytes);
  return found;
}

}  // namespace tessera::emulated_cuda
