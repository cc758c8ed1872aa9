#include "kernels/check.h"

#include <tuple>

#include "tessera/error.h"

namespace tessera::kernels {

void check_workspace(const ComputeContext& context, std::int64_t needed_bytes, const char* op) {
  if (context.workspace.bytes >= needed_bytes && (needed_bytes == 0 || context.workspace.data != nullptr))
    return;
  throw UsageError(std::string(op) + ": the workspace has " + std::to_string(context.workspace.bytes) +
                   " bytes, needed are " + std::to_string(needed_bytes));
}

void check_compute_type(DType type, const char* op) {
  if (type == DType::fp32 || type == DType::bf16) return;
  throw UsageError(std::string(op) + ": type " + std::string(name_of(type)) +
                   " is not allowed; use fp32 or bf16");
}

void check_beta(float beta, const char* op) {
  if (beta == 0.0f || beta == 1.0f) return;
  throw UsageError(std::string(op) + ": beta is " + std::to_string(beta) + "; use 0 or 1");
}

void check_copy(const CopyShape& shape) {
  for (const auto& [name, stride] :
       {std::pair("input_stride", shape.input_stride), std::pair("output_stride", shape.output_stride)})
    if (stride < shape.row_bytes)
      throw UsageError("copy_rows: " + std::string(name) + " is " + std::to_string(stride) +
                       "; it must be at least row_bytes, which is " + std::to_string(shape.row_bytes));
}

void check_chain(std::size_t contributions, float beta) {
  constexpr std::size_t kMostContributions = 1024;
  check_beta(beta, "ordered_chain");
  if (contributions < 1 || contributions > kMostContributions)
    throw UsageError("ordered_chain: " + std::to_string(contributions) + " contributions; 1 to " +
                     std::to_string(kMostContributions) + " are possible");
}

void check_squares(const Squares& squares) {
  if (squares.first >= 0 && squares.first % kSquareBlock == 0) return;
  throw UsageError("squares of elements from " + std::to_string(squares.first) +
                   " on; they begin at a multiple of " + std::to_string(kSquareBlock));
}

namespace {

void check_moment_type(DType type, const char* op) {
  if (type == DType::fp32 || type == DType::bf16) return;
  throw UsageError(std::string(op) + ": moments of type " + std::string(name_of(type)) +
                   " are not possible; use fp32 or bf16");
}

void check_runs(const OptimizerArguments& a, const char* op) {
  std::int64_t numel = 0;
  for (const CoefficientRun& run : a.runs) {
    numel += run.numel;
    if (run.coefficients.index() != a.coefficients.index())
      throw UsageError(std::string(op) + ": a run has the coefficients of another rule");
  }
  if (numel == a.numel && a.runs.size() <= kMostCoefficientRuns) return;
  throw UsageError(std::string(op) + ": " + std::to_string(a.runs.size()) + " runs of " +
                   std::to_string(numel) + " elements in all; at most " +
                   std::to_string(kMostCoefficientRuns) + " are possible, of " + std::to_string(a.numel));
}

}  // namespace

void check_update(const OptimizerArguments& a) {
  const auto [op, least, most] =
      std::visit([](const auto& own) { return std::tuple(own.kOp, own.kLeastMoments, own.kMostMoments); },
                 a.coefficients);
  check_moment_type(a.moment_type, op);
  if (a.moment_count < least || a.moment_count > most)
    throw UsageError(std::string(op) + ": " + std::to_string(a.moment_count) +
                     " moments are not possible; use " + std::to_string(least) +
                     (least == most ? "" : " to " + std::to_string(most)));
  for (int k = 0; k < a.moment_count && a.numel > 0; ++k)
    if (a.moments[k] == nullptr)
      throw UsageError(std::string(op) + ": moment " + std::to_string(k) + " is null; give all " +
                       std::to_string(a.moment_count));
  if (!a.runs.empty()) check_runs(a, op);
}

void check_rotary(const RotaryShape& shape, const char* op) {
  check_compute_type(shape.type, op);
  if (shape.head_channels < 2 || shape.head_channels % 2 != 0)
    throw UsageError(std::string(op) + ": a head has " + std::to_string(shape.head_channels) +
                     " channels; it needs an even number");
  if (shape.row_numel < shape.heads * shape.head_channels)
    throw UsageError(std::string(op) + ": a row has " + std::to_string(shape.row_numel) + " elements, the " +
                     std::to_string(shape.heads) + " heads need " +
                     std::to_string(shape.heads * shape.head_channels));
}

void check_embedding(const EmbeddingShape& shape, const char* op) {
  check_compute_type(shape.type, op);
  if (shape.positions != 0 && shape.positions < shape.sequence)
    throw UsageError(std::string(op) + ": the position table has " + std::to_string(shape.positions) +
                     " rows, the sequence needs " + std::to_string(shape.sequence));
  if (shape.first_token < 0 || shape.table_rows < 0 || (shape.table_rows == 0 && shape.first_token != 0))
    throw UsageError(std::string(op) + ": the table has " + std::to_string(shape.table_rows) +
                     " rows from token " + std::to_string(shape.first_token) +
                     " on; give both as 0 or more, and table_rows with a first token");
}

void check_whole_table(const EmbeddingShape& shape, const void* position_table) {
  if (position_table == nullptr || shape.has_all_tokens()) return;
  throw UsageError("embedding_forward: a position table, but the token table has only " +
                   std::to_string(shape.table_rows) + " rows from token " +
                   std::to_string(shape.first_token) + " on; use add_positions() on the sum of all ranks");
}

void check_positions(const PositionShape& shape) {
  check_compute_type(shape.type, "add_positions");
  if (shape.first_row < 0 || shape.sequence < 1)
    throw UsageError("add_positions: rows from " + std::to_string(shape.first_row) + " on of sequences of " +
                     std::to_string(shape.sequence) + "; needed are 0 or more, and 1 or more");
}

void check_softmax(const SoftmaxShape& shape, const char* op) {
  check_compute_type(shape.type, op);
  const auto check_least = [&](std::int64_t value, std::int64_t least, const char* name) {
    if (value < least)
      throw UsageError(std::string(op) + ": " + name + " is " + std::to_string(value) + ", at least " +
                       std::to_string(least) + " is needed");
  };
  check_least(shape.rows, 0, "rows");
  check_least(shape.columns, 1, "columns");
  check_least(shape.first_column, 0, "first_column");
  check_least(shape.vocabulary, 1, "vocabulary");
  check_least(shape.ranks, 1, "ranks");
}

void check_targets(std::int64_t rows, std::int64_t vocabulary, const std::int32_t* targets, const char* op) {
  for (std::int64_t row = 0; row < rows; ++row)
    if (targets[row] < -1 || targets[row] >= vocabulary)
      throw UsageError(std::string(op) + ": target " + std::to_string(targets[row]) + " of row " +
                       std::to_string(row) + " is neither -1 nor in the vocabulary of " +
                       std::to_string(vocabulary));
}

void check_dropout(const DropoutShape& shape, const Dropout& dropout) {
  check_compute_type(shape.type, "dropout");
  if (dropout.threshold >= 65536)
    throw UsageError("dropout: the threshold is " + std::to_string(dropout.threshold) +
                     "; it must be below 65536");
  const std::int64_t all = shape.batch * shape.sequence;
  if (shape.first_row < 0 || shape.rows < 0 || (shape.rows == 0 && shape.first_row != 0) ||
      shape.first_row + shape.rows > all)
    throw UsageError("dropout: " + std::to_string(shape.rows) + " rows from " +
                     std::to_string(shape.first_row) + " on; the batch has " + std::to_string(all) +
                     ", and with 0 rows, which are all, the first is 0");
}

void check_pair(bool first, bool second, const char* what) {
  if (first == second) return;
  throw UsageError(std::string(what) + " go together; give both or neither");
}

void check_cached_attention(const CachedAttentionShape& shape) {
  check_attention(
      {.channels = shape.channels, .heads = shape.heads, .type = shape.type, .kv_heads = shape.kv_heads});
  if (shape.capacity < 1)
    throw UsageError("cached attention: capacity is " + std::to_string(shape.capacity) +
                     "; it must be at least 1");
  if (shape.position < 0 || shape.position + shape.rows > shape.capacity)
    throw UsageError("cached attention: " + std::to_string(shape.rows) + " rows from position " +
                     std::to_string(shape.position) + " on; the cache has place for " +
                     std::to_string(shape.capacity) + " tokens");
}

void check_attention(const AttentionShape& shape) {
  check_compute_type(shape.type, "attention");
  if (shape.heads < 1 || shape.channels % shape.heads != 0)
    throw UsageError("attention: " + std::to_string(shape.channels) + " channels cannot be split over " +
                     std::to_string(shape.heads) + " heads; channels must be a multiple of heads");
  if (shape.kv_heads < 0 || shape.heads % shape.kv_heads_or_heads() != 0)
    throw UsageError("attention: " + std::to_string(shape.heads) + " heads cannot share " +
                     std::to_string(shape.kv_heads) + " key and value heads; heads must be a multiple");
  check_dropout({.type = shape.type}, shape.dropout);
}

std::string describe(const MatmulShape& shape) {
  return "matmul " + std::to_string(shape.m) + " x " + std::to_string(shape.n) + " x " +
         std::to_string(shape.k) + " " + std::string(name_of(shape.input_type)) + " to " +
         std::string(name_of(shape.output_type));
}

void check_matmul(const MatmulShape& s) {
  check_compute_type(s.input_type, "matmul");
  check_compute_type(s.output_type, "matmul");
  if (s.output_type == DType::bf16 && s.input_type == DType::fp32)
    throw UsageError(describe(s) + ": a bf16 output needs bf16 inputs");
  if (s.m < 1 || s.n < 1 || s.k < 1) throw UsageError(describe(s) + ": every extent must be at least 1");
  const auto check_leading = [&](std::int64_t leading, std::int64_t columns, const char* name) {
    if (leading != 0 && leading < columns)
      throw UsageError(describe(s) + ": " + name + " is " + std::to_string(leading) + ", at least " +
                       std::to_string(columns) + " is needed");
  };
  check_leading(s.lda, s.transpose_a ? s.m : s.k, "lda");
  check_leading(s.ldb, s.transpose_b ? s.k : s.n, "ldb");
  check_leading(s.ldc, s.n, "ldc");
}

void check_bias(const MatmulShape& shape, const void* bias) {
  if (shape.bias != (bias != nullptr))
    throw UsageError(describe(shape) + ": a bias is " +
                     (bias ? "given, but shape.bias is false" : "missing"));
}

}  // namespace tessera::kernels
