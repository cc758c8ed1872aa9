// Umbrella of floor 4: one plain function per op, the same signature for every backend.
//
// Conventions of all ops:
//  - Tensors are dense, row-major and passed as void* with a DType: fp32 or bf16 (compute types). fp16 is for
//    add, fill, casts.h, reduce.h and optimizer.h only. Statistics and losses are float*, token ids int32.
//  - Sums are taken in fp32 or wider and rounded to the tensor's type once.
//  - `beta` is 0 (overwrite: old contents, NaN included, are never read) or 1 (add to what is there).
//  - Buffers do not overlap unless a comment says they may be the same pointer.
//  - A pointer may be null only where "optional" is written.
//  - On CUDA all tensors and results lie in device memory. Sums over rows, columns and products may be taken
//    in another order for a tensor that does not begin at a multiple of 16 bytes; all of an arena's do.
//  - Otherwise results do not depend on addresses, on earlier calls or on whether an element lies in a
//    vector's tail. Ops built on matmul may depend on the number of threads and on the instruction set.
//    Attention depends only on whether the processor has fused multiply-add and, in bf16, a matrix unit
//    (cpu/matrix_unit.h). All other ops depend on neither threads nor instruction set.
#pragma once

#include "kernels/attention.h"
#include "kernels/cached_attention.h"
#include "kernels/casts.h"
#include "kernels/context.h"
#include "kernels/copy.h"
#include "kernels/cross_entropy.h"
#include "kernels/dropout.h"
#include "kernels/elementwise.h"
#include "kernels/embedding.h"
#include "kernels/gate.h"
#include "kernels/layer_norm.h"
#include "kernels/linear.h"
#include "kernels/matmul.h"
#include "kernels/matmul_fp8.h"
#include "kernels/optimizer.h"
#include "kernels/quantize.h"
#include "kernels/reduce.h"
#include "kernels/rms_norm.h"
#include "kernels/rotary.h"
#include "kernels/softmax.h"
#include "kernels/swiglu.h"
