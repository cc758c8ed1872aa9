// The gated activation of a Llama MLP (Shazeer 2020). The same bits for any thread count and instruction set.
#pragma once

#include <cstdint>

#include "kernels/context.h"
#include "tessera/dtype.h"

namespace tessera::kernels {

// gate_up [rows, 2 * hidden]: a row is the gate, then the values that it gates (up).
struct SwigluShape {
  std::int64_t rows = 0;
  std::int64_t hidden = 0;
  DType type = DType::fp32;
};

// output [rows, hidden] = silu(gate) * up, silu(x) = x / (1 + e^-x), rounded once.
void swiglu_forward(const ComputeContext& context, const SwigluShape& shape, const void* gate_up,
                    void* output);

// Computes gate_up_gradient [rows, 2 * hidden] from output_gradient [rows, hidden]. gate_up_gradient may be
// gate_up.
void swiglu_backward(const ComputeContext& context, const SwigluShape& shape, const void* gate_up,
                     const void* output_gradient, void* gate_up_gradient);

}  // namespace tessera::kernels
