// Conversions between fp32, bf16 and fp16. The same bits for any thread count and instruction set.
#pragma once

#include <cstdint>

#include "kernels/context.h"
#include "tessera/dtype.h"

namespace tessera::kernels {

// output = input in another type: to nearest, ties to even; overflow to infinity; NaN stays NaN; subnormals
// are kept. The same pointer for both is allowed where output_type is not the larger one.
void cast(const ComputeContext& context, std::int64_t numel, DType input_type, const void* input,
          DType output_type, void* output);

}  // namespace tessera::kernels
