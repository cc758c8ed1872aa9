#include "kernels/cross_entropy.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "kernels/check.h"
#include "kernels/cpu/close_gaps.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cross_entropy_chunks.h"
#include "kernels/softmax.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/cross_entropy.cpp"
#include "hwy/foreach_target.h"  // compiles what follows once per target
#include "kernels/cpu/softmax-inl.h"
#include "kernels/cpu/v16-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::kernels::HWY_NAMESPACE {

// gradient = factor e, written over the row of e = e^(logit - maximum) from its start on; T is no wider than
// float, so nothing is overwritten before it is read.
template <class T>
HWY_INLINE void put_gradient(float* row, std::int64_t count, std::int32_t target, float sum, float scale) {
  T* gradient = reinterpret_cast<T*>(row);
  const float at_target = row[target];
  const V16 factor = set16(scale / sum);
  for (std::int64_t i = 0; i < count; i += 16)
    store_some(mul(load_some(row + i, count - i), factor), gradient + i, count - i);
  gradient[target] = from_float<T>(scale * (at_target / sum - 1.0f));
}

// The loss of one row of logits; with `gradient_type` also d(scale * loss) / d(logits), in place.
float cross_entropy_row(float* logits, std::int64_t count, std::int32_t target, const DType* gradient_type,
                        float scale) {
  const float maximum = max_of_row(logits, count);
  const float target_logit = logits[target];
  const float sum = gradient_type == nullptr
                        ? sum_exp_of_row(static_cast<const float*>(logits), count, maximum)
                        : sum_exp_of_row(logits, count, maximum);
  const double loss = std::log(static_cast<double>(sum)) + maximum - target_logit;
  if (gradient_type != nullptr && *gradient_type == DType::fp32)
    put_gradient<float>(logits, count, target, sum, scale);
  else if (gradient_type != nullptr)
    put_gradient<Bf16>(logits, count, target, sum, scale);
  return static_cast<float>(loss);
}

}  // namespace tessera::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera::kernels::cpu {

HWY_EXPORT(cross_entropy_row);

namespace {

std::int64_t logits_bytes(const CrossEntropyShape& shape) {
  return workspace_part_bytes(rows_per_chunk(shape, DeviceType::cpu) * shape.vocabulary * 4);
}

void check_arguments(const ComputeContext& context, const CrossEntropyShape& shape,
                     const std::int32_t* targets, const char* op) {
  check_compute_type(shape.type, op);
  check_workspace(context, kernels::cross_entropy_workspace_bytes(shape, context.target()), op);
  check_targets(shape.rows, shape.vocabulary, targets, op);
}

// What all chunks of a call share.
struct Head {
  const CrossEntropyShape& shape;
  const void* input;
  const void* weight;
  const std::int32_t* targets;
  float* losses;
  ComputeContext matmul_context;  // the workspace behind the logits
  float* logits;

  Head(const ComputeContext& context, const CrossEntropyShape& s, const void* head_input,
       const void* head_weight, const std::int32_t* head_targets, float* head_losses)
      : shape(s),
        input(head_input),
        weight(head_weight),
        targets(head_targets),
        losses(head_losses),
        matmul_context(context),
        logits(static_cast<float*>(context.workspace.data)) {
    matmul_context.workspace = {.data = offset_bytes<char>(context.workspace.data, logits_bytes(s)),
                                .bytes = context.workspace.bytes - logits_bytes(s)};
  }

  // Logits and losses of a chunk; with a gradient type, the logits are replaced by their gradients.
  void run(Chunk chunk, const DType* gradient_type, float scale) const {
    matmul(matmul_context, logits_shape(shape, chunk.rows),
           element(input, shape.type, chunk.begin * shape.channels), weight, nullptr, logits);
    parallel_ranges(matmul_context.threads, chunk.rows, 1, [&](std::int64_t begin, std::int64_t end, int) {
      for (std::int64_t row = begin; row < end; ++row) {
        float* row_logits = logits + row * shape.vocabulary;
        const std::int32_t target = targets[chunk.begin + row];
        if (target >= 0)
          losses[chunk.begin + row] = HWY_DYNAMIC_DISPATCH(cross_entropy_row)(row_logits, shape.vocabulary,
                                                                              target, gradient_type, scale);
        else
          ignore(row_logits, losses[chunk.begin + row]);
      }
    });
  }

  void ignore(float* row_logits, float& loss) const {
    loss = 0.0f;
    std::fill_n(row_logits, shape.vocabulary, 0.0f);  // zero gradients in any type
  }
};

}  // namespace

std::int64_t cross_entropy_workspace_bytes(const CrossEntropyShape& shape, const Target& target) {
  std::int64_t scratch_bytes = 0;
  float beta = 0.0f;
  for_each_chunk(shape, DeviceType::cpu, [&](Chunk chunk) {
    const auto need = [&](const MatmulShape& product) {
      scratch_bytes = std::max(scratch_bytes, matmul_workspace_bytes(product, target));
    };
    need(logits_shape(shape, chunk.rows));
    need(input_gradient_shape(shape, chunk.rows));
    need(weight_gradient_shape(shape, chunk.rows, beta));
    beta = 1.0f;
    need(weight_gradient_shape(shape, chunk.rows, beta));
  });
  return logits_bytes(shape) + scratch_bytes;
}

void cross_entropy_forward(const ComputeContext& context, const CrossEntropyShape& shape, const void* input,
                           const void* weight, const std::int32_t* targets, float* losses,
                           CrossEntropyLoss* total) {
  check_arguments(context, shape, targets, "cross_entropy_forward");
  const Head head(context, shape, input, weight, targets, losses);
  for_each_chunk(shape, DeviceType::cpu, [&](Chunk chunk) { head.run(chunk, nullptr, 1.0f); });
  total_loss(context, shape.rows, targets, losses, total);
}

void cross_entropy_forward_backward(const ComputeContext& context, const CrossEntropyShape& shape,
                                    const CrossEntropyForwardBackward& arguments) {
  check_arguments(context, shape, arguments.targets, "cross_entropy_forward_backward");
  check_beta(arguments.weight_beta, "cross_entropy_forward_backward");
  const Head head(context, shape, arguments.input, arguments.weight, arguments.targets, arguments.losses);
  float beta = arguments.weight_beta;
  for_each_chunk(shape, DeviceType::cpu, [&](Chunk chunk) {
    const std::int64_t first = chunk.begin * shape.channels;
    head.run(chunk, &shape.type, arguments.scale);
    if (shape.type == DType::bf16)
      close_gaps(context.threads, chunk.rows, shape.vocabulary * bytes_of(shape.type), head.logits);
    if (arguments.weight_gradient != nullptr)  // first, since input_gradient may be input
      matmul(head.matmul_context, weight_gradient_shape(shape, chunk.rows, beta), head.logits,
             element(arguments.input, shape.type, first), nullptr, arguments.weight_gradient);
    matmul(head.matmul_context, input_gradient_shape(shape, chunk.rows), head.logits, arguments.weight,
           nullptr, element(arguments.input_gradient, shape.type, first));
    beta = 1.0f;
  });
  total_loss(context, shape.rows, arguments.targets, arguments.losses, arguments.total);
}

}  // namespace tessera::kernels::cpu
#endif  // HWY_ONCE
