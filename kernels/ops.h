// How an op finds its backend. Callers use the functions of the op headers; each looks itself up in the table
// of its context's device. A backend defines a function of the same name and type in its own namespace.
#pragma once

#include "kernels/column_sum.h"
#include "kernels/kernels.h"
#include "kernels/round_sum.h"

namespace tessera::kernels {

// Every op that a backend implements. All other ops are made of these (ops.cpp, linear.cpp).
// clang-format off
#define TESSERA_FOR_EACH_OP(op) \
  op(optimizer_update) op(cast) op(fill) op(copy_bytes) op(copy_rows) op(add) \
  op(gelu_forward) op(gelu_backward) op(dropout) op(swiglu_forward) op(swiglu_backward) op(rotary_forward) op(rotary_backward) \
  op(add_loss) op(set_gate) op(ordered_chain) op(sum_of_squares) \
  op(column_sum_workspace_bytes) op(column_sum) op(round_sum) \
  op(layer_norm_forward) op(layer_norm_backward_workspace_bytes) op(layer_norm_backward) \
  op(rms_norm_forward) op(rms_norm_backward_workspace_bytes) op(rms_norm_backward) \
  op(embedding_forward) op(embedding_forward_partial) op(embedding_backward_workspace_bytes) op(embedding_backward) \
  op(matmul_workspace_bytes) op(matmul) op(quantize) op(matmul_fp8_workspace_bytes) op(matmul_fp8) \
  op(cross_entropy_workspace_bytes) op(cross_entropy_forward) op(cross_entropy_forward_backward) \
  op(softmax_statistics) op(softmax_gradients) op(softmax_losses) op(total_loss) \
  op(attention_forward_workspace_bytes) op(attention_forward) \
  op(attention_backward_workspace_bytes) op(attention_backward) \
  op(cached_attention_workspace_bytes) op(cached_attention_forward)
// clang-format on

#define TESSERA_OP_DECLARATION(name) decltype(kernels::name) name;
#define TESSERA_OP_MEMBER(name) decltype(&kernels::name) name;

struct Ops {
  TESSERA_FOR_EACH_OP(TESSERA_OP_MEMBER)
};

namespace cpu {
TESSERA_FOR_EACH_OP(TESSERA_OP_DECLARATION)
}
namespace cuda {
TESSERA_FOR_EACH_OP(TESSERA_OP_DECLARATION)
}

const Ops& cpu_ops();
const Ops& cuda_ops();  // UnsupportedError naming the build flag where the build has no CUDA

}  // namespace tessera::kernels
