#include "kernels/embedding.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "kernels/check.h"
#include "kernels/cpu/parallel.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/embedding.cpp"
#include "hwy/foreach_target.h"  // compiles what follows once per target
#include "kernels/cpu/v16-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::kernels::HWY_NAMESPACE {

template <class T>
HWY_INLINE void embed_of(const T* token, const T* position, T* output, std::int64_t count) {
  for (std::int64_t i = 0; i < count; i += 16)
    store_some(add(load_some(token + i, count - i), load_some(position + i, count - i)), output + i,
               count - i);
}

template <class T>
HWY_INLINE void widen_of(const T* token, float* output, std::int64_t count) {
  for (std::int64_t i = 0; i < count; i += 16)
    store_some(load_some(token + i, count - i), output + i, count - i);
}

template <class T>
HWY_INLINE void add_to_sum_of(const T* row, float* sum, std::int64_t count) {
  for (std::int64_t i = 0; i < count; i += 16)
    store_some(add(load_some(sum + i, count - i), load_some(row + i, count - i)), sum + i, count - i);
}

template <class T>
HWY_INLINE void put_sum_of(const float* sum, float beta, T* row, std::int64_t count) {
  for (std::int64_t i = 0; i < count; i += 16) {
    V16 value = load_some(sum + i, count - i);
    if (beta != 0.0f) value = add(load_some(row + i, count - i), value);
    store_some(value, row + i, count - i);
  }
}

void embed_row(DType type, const void* token, const void* position, void* output, std::int64_t count) {
  if (type == DType::fp32)
    embed_of(static_cast<const float*>(token), static_cast<const float*>(position),
             static_cast<float*>(output), count);
  else
    embed_of(static_cast<const Bf16*>(token), static_cast<const Bf16*>(position), static_cast<Bf16*>(output),
             count);
}

void widen_row(DType type, const void* token, float* output, std::int64_t count) {
  if (type == DType::fp32)
    widen_of(static_cast<const float*>(token), output, count);
  else
    widen_of(static_cast<const Bf16*>(token), output, count);
}

void add_to_sum(DType type, const void* row, float* sum, std::int64_t count) {
  if (type == DType::fp32)
    add_to_sum_of(static_cast<const float*>(row), sum, count);
  else
    add_to_sum_of(static_cast<const Bf16*>(row), sum, count);
}

void put_sum(DType type, const float* sum, float beta, void* row, std::int64_t count) {
  if (type == DType::fp32)
    put_sum_of(sum, beta, static_cast<float*>(row), count);
  else
    put_sum_of(sum, beta, static_cast<Bf16*>(row), count);
}

}  // namespace tessera::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera::kernels::cpu {

HWY_EXPORT(embed_row);
HWY_EXPORT(widen_row);
HWY_EXPORT(add_to_sum);
HWY_EXPORT(put_sum);

namespace {

// The table's row of a token above, the row where it stands below: sorted, the rows of a token follow each
// other in row order.
using Occurrence = std::uint64_t;
std::int64_t token_of(Occurrence occurrence) { return static_cast<std::int64_t>(occurrence >> 32); }
std::int64_t row_of(Occurrence occurrence) { return static_cast<std::int64_t>(occurrence & 0xffffffffu); }

void check_tokens(const EmbeddingShape& shape, const std::int32_t* tokens, const char* op) {
  for (std::int64_t row = 0; row < shape.batch * shape.sequence; ++row)
    if (tokens[row] < 0 || tokens[row] >= shape.vocabulary)
      throw UsageError(std::string(op) + ": token " + std::to_string(tokens[row]) + " at " +
                       std::to_string(row) + " is outside the vocabulary of " +
                       std::to_string(shape.vocabulary));
}

// The table's row of a token; null where another rank's table has it.
const void* table_row(const EmbeddingShape& shape, const void* table, std::int32_t token) {
  const std::int64_t row = token - shape.first_token;
  const bool is_here = row >= 0 && row < shape.table_rows_or_all();
  return is_here ? element(table, shape.type, row * shape.channels) : nullptr;
}

void put_row(const EmbeddingShape& shape, const void* token, void* output) {
  if (token != nullptr)
    std::memcpy(output, token, static_cast<std::size_t>(shape.channels * bytes_of(shape.type)));
  else if (shape.type == DType::fp32)
    std::fill_n(static_cast<float*>(output), shape.channels, -0.0f);
  else
    std::fill_n(static_cast<Bf16*>(output), shape.channels, from_float<Bf16>(-0.0f));
}

std::int64_t occurrences_bytes(const EmbeddingShape& shape) {
  return workspace_part_bytes(shape.batch * shape.sequence * static_cast<std::int64_t>(sizeof(Occurrence)));
}

struct Backward {
  const EmbeddingShape& shape;
  const EmbeddingBackward& arguments;
  const Occurrence* occurrences;  // [count] sorted
  std::int64_t count;

  void* token_row(std::int64_t token) const {
    return element(arguments.token_gradient, shape.type, token * shape.channels);
  }
  const void* gradient_row(std::int64_t row) const {
    return element(arguments.output_gradient, shape.type, row * shape.channels);
  }

  // The token table's rows [begin, end).
  void tokens(std::int64_t begin, std::int64_t end, float* sum) const {
    const Occurrence* next =
        std::lower_bound(occurrences, occurrences + count, static_cast<Occurrence>(begin) << 32);
    std::int64_t zeroed = begin;  // rows below are done
    const auto zero_to = [&](std::int64_t token) {
      if (arguments.token_beta == 0.0f && token > zeroed)
        std::memset(token_row(zeroed), 0,
                    static_cast<std::size_t>((token - zeroed) * shape.channels * bytes_of(shape.type)));
    };
    while (next != occurrences + count && token_of(*next) < end) {
      const std::int64_t token = token_of(*next);
      zero_to(token);
      std::fill_n(sum, shape.channels, 0.0f);
      for (; next != occurrences + count && token_of(*next) == token; ++next)
        HWY_DYNAMIC_DISPATCH(add_to_sum)(shape.type, gradient_row(row_of(*next)), sum, shape.channels);
      HWY_DYNAMIC_DISPATCH(put_sum)(shape.type, sum, arguments.token_beta, token_row(token), shape.channels);
      zeroed = token + 1;
    }
    zero_to(end);
  }

  // The position table's rows [begin, end).
  void positions(std::int64_t begin, std::int64_t end, float* sum) const {
    for (std::int64_t position = begin; position < end; ++position) {
      if (position >= shape.sequence && arguments.position_beta != 0.0f) return;
      std::fill_n(sum, shape.channels, 0.0f);
      for (std::int64_t item = 0; item < shape.batch && position < shape.sequence; ++item)
        HWY_DYNAMIC_DISPATCH(add_to_sum)
      (shape.type, gradient_row(item * shape.sequence + position), sum, shape.channels);
      HWY_DYNAMIC_DISPATCH(put_sum)
      (shape.type, sum, arguments.position_beta,
       element(arguments.position_gradient, shape.type, position * shape.channels), shape.channels);
    }
  }
};

}  // namespace

void embedding_forward(const ComputeContext& context, const EmbeddingShape& shape, const std::int32_t* tokens,
                       const void* token_table, const void* position_table, void* output) {
  check_embedding(shape, "embedding_forward");
  check_pair(position_table != nullptr, shape.positions != 0,
             "embedding_forward: a position table and positions");
  check_whole_table(shape, position_table);
  check_tokens(shape, tokens, "embedding_forward");
  const std::int64_t rows = shape.batch * shape.sequence;
  parallel_ranges(context.threads, rows, 16, [&](std::int64_t begin, std::int64_t end, int) {
    for (std::int64_t row = begin; position_table == nullptr && row < end; ++row)
      put_row(shape, table_row(shape, token_table, tokens[row]),
              element(output, shape.type, row * shape.channels));
    if (position_table == nullptr) return;
    for (std::int64_t row = begin; row < end; ++row) HWY_DYNAMIC_DISPATCH(embed_row)
    (shape.type, element(token_table, shape.type, tokens[row] * shape.channels),
     element(position_table, shape.type, row % shape.sequence * shape.channels),
     element(output, shape.type, row * shape.channels), shape.channels);
  });
}

void embedding_forward_partial(const ComputeContext& context, const EmbeddingShape& shape,
                               const std::int32_t* tokens, const void* token_table, float* output) {
  check_embedding(shape, "embedding_forward_partial");
  check_tokens(shape, tokens, "embedding_forward_partial");
  parallel_ranges(context.threads, shape.batch * shape.sequence, 16,
                  [&](std::int64_t begin, std::int64_t end, int) {
                    for (std::int64_t row = begin; row < end; ++row) {
                      const void* const token = table_row(shape, token_table, tokens[row]);
                      float* const to = output + row * shape.channels;
                      if (token != nullptr)
                        HWY_DYNAMIC_DISPATCH(widen_row)(shape.type, token, to, shape.channels);
                      else
                        std::fill_n(to, shape.channels, -0.0f);
                    }
                  });
}

std::int64_t embedding_backward_workspace_bytes(const EmbeddingShape& shape, const Target& target) {
  return occurrences_bytes(shape) + target.threads * workspace_part_bytes(shape.channels * 4);
}

void embedding_backward(const ComputeContext& context, const EmbeddingShape& shape,
                        const EmbeddingBackward& arguments) {
  check_embedding(shape, "embedding_backward");
  check_tokens(shape, arguments.tokens, "embedding_backward");
  check_beta(arguments.token_beta, "embedding_backward");
  check_beta(arguments.position_beta, "embedding_backward");
  check_workspace(context, cpu::embedding_backward_workspace_bytes(shape, context.target()),
                  "embedding_backward");
  auto* occurrences = static_cast<Occurrence*>(context.workspace.data);
  const std::int64_t rows = shape.batch * shape.sequence;
  const auto sum_of_thread = [&](int thread) {
    return offset_bytes<float>(context.workspace.data,
                               occurrences_bytes(shape) + thread * workspace_part_bytes(shape.channels * 4));
  };
  std::int64_t count = 0;
  if (arguments.token_gradient != nullptr)
    for (std::int64_t row = 0; row < rows; ++row) {
      const std::int64_t own = arguments.tokens[row] - shape.first_token;
      if (own >= 0 && own < shape.table_rows_or_all())
        occurrences[count++] = static_cast<Occurrence>(own) << 32 | static_cast<Occurrence>(row);
    }
  const Backward backward{shape, arguments, occurrences, count};
  if (arguments.token_gradient != nullptr) {
    std::sort(occurrences, occurrences + count);
    parallel_ranges(context.threads, shape.table_rows_or_all(), 16,
                    [&](std::int64_t begin, std::int64_t end, int thread) {
                      backward.tokens(begin, end, sum_of_thread(thread));
                    });
  }
  if (arguments.position_gradient != nullptr)
    parallel_ranges(context.threads, shape.positions, 16,
                    [&](std::int64_t begin, std::int64_t end, int thread) {
                      backward.positions(begin, end, sum_of_thread(thread));
                    });
}

}  // namespace tessera::kernels::cpu
#endif  // HWY_ONCE
