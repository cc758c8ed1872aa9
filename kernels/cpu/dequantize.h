// Matrices in fp8 as bf16 again: what the CPU multiplies.
#pragma once

#include "kernels/float_types.h"
#include "kernels/matmul_fp8.h"

namespace tessera::kernels::cpu {

// output [rows, columns] = values · scales, exactly.
void dequantize(const ComputeContext& context, const QuantizeShape& shape, const Fp8Matrix& matrix,
                Bf16* output);

}  // namespace tessera::kernels::cpu
