// Element types of parameters, gradients and activations.
#pragma once

#include <cstdint>
#include <string_view>

#include "tessera/error.h"

namespace tessera {

enum class DType : std::uint8_t { fp32, bf16, fp16 };

constexpr std::int64_t bytes_of(DType type) { return type == DType::fp32 ? 4 : 2; }

constexpr std::string_view name_of(DType type) {
  switch (type) {
    case DType::fp32:
      return "fp32";
    case DType::bf16:
      return "bf16";
    case DType::fp16:
      return "fp16";
  }
  return "?";
}

// The inverse of name_of; throws UsageError for anything else.
inline DType parse_dtype(std::string_view name) {
  for (DType type : {DType::fp32, DType::bf16, DType::fp16})
    if (name == name_of(type)) return type;
  throw UsageError("type '" + std::string(name) + "' is not known; use fp32, bf16 or fp16");
}

}  // namespace tessera
