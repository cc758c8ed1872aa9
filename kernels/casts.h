// Conversions between fp32, bf16 and fp16. The same bits for any thread count and instruction set.
#pragma once

#include <cstdint>

#include "kernels/context.h"
#include "tessera/dtype.h"

namespace tessera::kernels {

// output = input in another type: to nearest, ties to even; overflow to infinity; NaN stays NaN; subnormals
// are kept. Both may be the same pointer unless output_type is larger than input_type.
void cast(const ComputeContext& context, std::int64_t numel, DType input_type, const void* input,
          DType output_type, void* output);

}  // namespace tessera::kernels
