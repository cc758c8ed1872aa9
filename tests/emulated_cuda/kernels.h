// What the emulation knows of a kernel: its name and its static shared memory, from the symbols of the
// running program, and what NVIDIA's compiler reports of it, from kernel_limits.txt.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace tessera::emulated_cuda {

// A generation of GPUs, and what it has for a block.
struct Architecture {
  int number;                     // as in sm_80
  std::size_t most_shared_bytes;  // of a block, if asked for
};
inline constexpr Architecture kArchitectures[] = {{80, 163 * 1024}, {90, 227 * 1024}, {100, 227 * 1024}};
inline constexpr std::size_t kArchitectureCount = std::size(kArchitectures);

constexpr std::size_t kPlainSharedBytes = 48 * 1024;  // of a block that did not ask for more
constexpr unsigned kRegistersOfBlock = 65536;

// The one that the emulated GPUs are of: EMULATED_CUDA_ARCHITECTURE, 80 if unset.
const Architecture& architecture();
// The compute capability of a GPU, 90 for 9.0, without a call of the runtime. See device.cpp.
int compute_capability(int ordinal);

// As the compiler reports them, by kArchitectures.
struct KernelLimits {
  int most_threads = 0;  // by the launch bounds; 0: any
  int registers[kArchitectureCount] = {};
  int static_shared_bytes[kArchitectureCount] = {};
};

struct Kernel {
  std::string name = "of an unknown name";  // without its parameters and the names of Tessera's namespaces
  std::vector<std::span<std::byte>> shared = {};      // its static shared variables
  std::optional<KernelLimits> limits = std::nullopt;  // none: not in the table

  // On the emulated architecture. Where the table has none, the variables' sum.
  std::size_t static_shared_bytes() const;
};

// Looks a kernel up by its address. Stays valid.
const Kernel& kernel_of(const void* address);
// How many kernels the table lists, and how many of these the program has.
struct Listed {
  std::size_t kernels = 0, found = 0;
};
Listed listed_kernels();
// For kernels of tests, which no table has.
void set_limits(const void* address, const KernelLimits& limits);

}  // namespace tessera::emulated_cuda
