#include "kernels/cross_entropy.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>

#include "kernels/check.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cross_entropy_chunks.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/cross_entropy.cpp"
#include "hwy/foreach_target.h"  // compiles what follows once per target
#include "kernels/cpu/v16-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::kernels::HWY_NAMESPACE {

HWY_INLINE float max_of_row(const float* logits, std::int64_t count) {
  V16 top = set16(logits[0]);
  std::int64_t i = 0;
  for (; i + 16 <= count; i += 16) top = max(top, load16(logits + i));
  float result = max_lanes(top);
  for (; i < count; ++i) result = std::max(result, logits[i]);
  return result;
}

// Sum of e^(logit - maximum), in blocks of 1024 so that a large vocabulary loses no digits. kKeep: with these
// in the place of the logits.
template <bool kKeep>
HWY_INLINE float sum_exp_of_row(float* logits, std::int64_t count, float maximum) {
  V16 sum = set16(0.0f);
  for (std::int64_t block = 0; block < count; block += 1024) {
    const std::int64_t end = std::min(block + 1024, count);
    V16 block_sum = set16(0.0f);
    for (std::int64_t i = block; i < end; i += 16) {
      const V16 e = exp16(sub(load_some(logits + i, end - i), set16(maximum)));
      if constexpr (kKeep) store_some(e, logits + i, end - i);
      block_sum = add(block_sum, fill_lanes_from(e, end - i, 0.0f));
    }
    sum = add(sum, block_sum);
  }
  return sum_lanes(sum);
}

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
  const float sum = gradient_type == nullptr ? sum_exp_of_row<false>(logits, count, maximum)
                                             : sum_exp_of_row<true>(logits, count, maximum);
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
  for (std::int64_t row = 0; row < shape.rows; ++row)
    if (targets[row] < -1 || targets[row] >= shape.vocabulary)
      throw UsageError(std::string(op) + ": target " + std::to_string(targets[row]) + " of row " +
                       std::to_string(row) + " is neither -1 nor in the vocabulary of " +
                       std::to_string(shape.vocabulary));
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

  // 16-bit gradients lie in the first half of each row of logits: moves the rows together, since oneDNN takes
  // a dense matrix far better. Row r goes from 2r to r, so rows [a, 2a) land where earlier rows were and can
  // move side by side.
  void close_gaps(Chunk chunk) const {
    const std::int64_t row_bytes = shape.vocabulary * bytes_of(shape.type);
    char* rows = reinterpret_cast<char*>(logits);
    for (std::int64_t first = 1; first < chunk.rows; first *= 2)
      parallel_ranges(matmul_context.threads, std::min(first, chunk.rows - first), 4,
                      [&](std::int64_t begin, std::int64_t end, int) {
                        for (std::int64_t row = first + begin; row < first + end; ++row)
                          std::memcpy(rows + row * row_bytes, rows + 2 * row * row_bytes,
                                      static_cast<std::size_t>(row_bytes));
                      });
  }

  void ignore(float* row_logits, float& loss) const {
    loss = 0.0f;
    std::fill_n(row_logits, shape.vocabulary, 0.0f);  // zero gradients in any type
  }

  CrossEntropyLoss total() const {
    CrossEntropyLoss result;
    for (std::int64_t row = 0; row < shape.rows; ++row) {
      if (targets[row] < 0) continue;
      result.sum += losses[row];
      ++result.counted;
    }
    return result;
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
  *total = head.total();
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
    if (shape.type == DType::bf16) head.close_gaps(chunk);
    if (arguments.weight_gradient != nullptr)  // first, since input_gradient may be input
      matmul(head.matmul_context, weight_gradient_shape(shape, chunk.rows, beta), head.logits,
             element(arguments.input, shape.type, first), nullptr, arguments.weight_gradient);
    matmul(head.matmul_context, input_gradient_shape(shape, chunk.rows), head.logits, arguments.weight,
           nullptr, element(arguments.input_gradient, shape.type, first));
    beta = 1.0f;
  });
  *arguments.total = head.total();
}

}  // namespace tessera::kernels::cpu
#endif  // HWY_ONCE
