// Argument checks of quantize.h and matmul_fp8.h, which the backends share.
#pragma once

#include <cstdint>
#include <string>

#include "kernels/matmul_fp8.h"

namespace tessera::kernels {

// What every extent and stride of a matrix in fp8 is a multiple of: cuBLASLt takes rows of whole 16 bytes,
// and each extent is the length of rows in one of a layer's three products.
inline constexpr std::int64_t kFp8Multiple = 16;

// Throws UsageError naming `what` unless 1 <= value, and a multiple of kFp8Multiple.
void check_fp8_extent(const std::string& op, const char* what, std::int64_t value);
void check_quantize(const QuantizeShape& shape);
std::string describe(const MatmulFp8Shape& shape);
void check_matmul_fp8(const MatmulFp8Shape& shape);
void check_fp8_bias(const MatmulFp8Shape& shape, const void* bias);

}  // namespace tessera::kernels
