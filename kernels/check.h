// Argument checks and workspace arithmetic that the backends share.
#pragma once

#include <cstdint>
#include <string>

#include "kernels/context.h"
#include "kernels/optimizer.h"
#include "tessera/dtype.h"

namespace tessera::kernels {

constexpr std::int64_t round_up(std::int64_t value, std::int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

// Parts of a workspace begin on cache lines.
constexpr std::int64_t workspace_part_bytes(std::int64_t bytes) { return round_up(bytes, 64); }

inline void check_workspace(const ComputeContext& context, std::int64_t needed_bytes, const char* op) {
  if (context.workspace.bytes >= needed_bytes && (needed_bytes == 0 || context.workspace.data != nullptr))
    return;
  throw UsageError(std::string(op) + ": the workspace has " + std::to_string(context.workspace.bytes) +
                   " bytes, needed are " + std::to_string(needed_bytes));
}

inline void check_compute_type(DType type, const char* op) {
  if (type == DType::fp32 || type == DType::bf16) return;
  throw UsageError(std::string(op) + ": type " + std::string(name_of(type)) +
                   " is not allowed; use fp32 or bf16");
}

inline void check_beta(float beta, const char* op) {
  if (beta == 0.0f || beta == 1.0f) return;
  throw UsageError(std::string(op) + ": beta is " + std::to_string(beta) + "; use 0 or 1");
}

inline void check_chain(std::size_t contributions, float beta) {
  constexpr std::size_t kMostContributions = 1024;
  check_beta(beta, "ordered_chain");
  if (contributions < 1 || contributions > kMostContributions)
    throw UsageError("ordered_chain: " + std::to_string(contributions) + " contributions; 1 to " +
                     std::to_string(kMostContributions) + " are possible");
}

inline void check_momentum(const SgdArguments& arguments) {
  if (arguments.momentum != nullptr || arguments.coefficients.momentum == 0.0f) return;
  throw UsageError("sgd_update: momentum is " + std::to_string(arguments.coefficients.momentum) +
                   ", but no momentum buffer is given");
}

template <class T>
T* offset_bytes(void* base, std::int64_t bytes) {
  return reinterpret_cast<T*>(static_cast<char*>(base) + bytes);
}

inline const void* element(const void* base, DType type, std::int64_t index) {
  return static_cast<const char*>(base) + index * bytes_of(type);
}
inline void* element(void* base, DType type, std::int64_t index) {
  return static_cast<char*>(base) + index * bytes_of(type);
}

}  // namespace tessera::kernels
