// matmul.h over oneDNN. A primitive and its memory objects are made once per shape and calling thread, so
// that no two threads share one and a call needs no lock; oneDNN shares the generated code between threads by
// itself.
#include "kernels/matmul.h"

#include <omp.h>
#include <oneapi/dnnl/dnnl.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "kernels/check.h"
#include "kernels/cpu/few_rows.h"
#include "kernels/matmul_key.h"
#include "kernels/ops.h"

namespace tessera::kernels::cpu {
namespace {

void check(dnnl_status_t status, const MatmulShape& shape) {
  if (status == dnnl_success) return;
  const std::string text = describe(shape) + ": oneDNN says status " + std::to_string(status);
  if (status == dnnl_unimplemented) throw UnsupportedError(text + " (not implemented on this processor)");
  throw EnvironmentError(text);
}

// oneDNN sizes its team by the calling thread's OpenMP setting, both when a primitive is made and when it
// runs. It computes a part only, and says nothing, where OpenMP then gives it fewer threads: so no more than
// OMP_THREAD_LIMIT allows, and not as OMP_DYNAMIC would have it.
class ThreadsGuard {
 public:
  explicit ThreadsGuard(int threads) : previous_(omp_get_max_threads()), dynamic_(omp_get_dynamic()) {
    if (dynamic_ != 0) omp_set_dynamic(0);
    threads = std::min(threads, omp_get_thread_limit());
    if (threads != previous_) omp_set_num_threads(threads);
  }
  ~ThreadsGuard() {
    omp_set_num_threads(previous_);
    if (dynamic_ != 0) omp_set_dynamic(dynamic_);
  }
  ThreadsGuard(const ThreadsGuard&) = delete;
  ThreadsGuard& operator=(const ThreadsGuard&) = delete;

 private:
  int previous_, dynamic_;
};

// Owns a oneDNN handle.
template <class Handle, dnnl_status_t (*kDestroy)(Handle)>
struct Destroy {
  void operator()(Handle handle) const { kDestroy(handle); }
};
template <class Handle, dnnl_status_t (*kDestroy)(Handle)>
using Owned = std::unique_ptr<std::remove_pointer_t<Handle>, Destroy<Handle, kDestroy>>;
using OwnedEngine = Owned<dnnl_engine_t, dnnl_engine_destroy>;
using OwnedStream = Owned<dnnl_stream_t, dnnl_stream_destroy>;
using OwnedMemory = Owned<dnnl_memory_t, dnnl_memory_destroy>;
using OwnedPrimitive = Owned<dnnl_primitive_t, dnnl_primitive_destroy>;
using OwnedDescription = Owned<dnnl_primitive_desc_t, dnnl_primitive_desc_destroy>;
using OwnedAttributes = Owned<dnnl_primitive_attr_t, dnnl_primitive_attr_destroy>;
using OwnedPostOps = Owned<dnnl_post_ops_t, dnnl_post_ops_destroy>;

// Everything that oneDNN bakes into a primitive.
MatmulKey key_of(const MatmulShape& s, int threads) {
  const std::int64_t flags = s.transpose_a | s.transpose_b << 1 | s.bias << 2 |
                             static_cast<std::int64_t>(s.input_type) << 4 |
                             static_cast<std::int64_t>(s.output_type) << 8 | std::int64_t{threads} << 16;
  const std::int64_t scales = static_cast<std::int64_t>(
      std::uint64_t{std::bit_cast<std::uint32_t>(s.alpha)} << 32 | std::bit_cast<std::uint32_t>(s.beta));
  return {{s.m, s.n, s.k, s.lda, s.ldb, s.ldc, flags, scales}};
}

// Where a product in bf16 that oneDNN does not compute on this processor has its operands in fp32: behind
// oneDNN's scratch in the workspace, each from a multiple of 64 bytes. bf16 to fp32 is exact and the sums are
// fp32 all the same, so that the result is rounded once, as it is elsewhere.
struct Widened {
  MatmulShape shape;                           // what is computed
  std::int64_t a = 0, b = 0, c = 0, bias = 0;  // offsets; c and bias only where the output is bf16
};

struct Entry {
  OwnedPrimitive primitive;
  OwnedMemory a, b, bias, c, scratch;
  std::optional<Widened> widened;
  std::int64_t workspace_bytes = 0;
};

// What one calling thread has made so far.
struct Cache {
  OwnedEngine engine;
  OwnedStream stream;
  std::unordered_map<MatmulKey, Entry, HashMatmulKey> entries;
};

dnnl_data_type_t type_of(DType type) { return type == DType::fp32 ? dnnl_f32 : dnnl_bf16; }

// A matrix that is used as [rows, columns], whose stored rows are `leading` elements apart.
dnnl_memory_desc_t matrix(const MatmulShape& shape, std::int64_t rows, std::int64_t columns, bool transposed,
                          std::int64_t leading, DType type) {
  const dnnl_dims_t dims = {rows, columns};
  if (leading == 0) leading = transposed ? rows : columns;
  const dnnl_dims_t strides = {transposed ? 1 : leading, transposed ? leading : 1};
  dnnl_memory_desc_t desc;
  check(dnnl_memory_desc_init_by_strides(&desc, 2, dims, type_of(type), strides), shape);
  return desc;
}

OwnedAttributes make_attributes(const MatmulShape& shape) {
  dnnl_primitive_attr_t raw = nullptr;
  check(dnnl_primitive_attr_create(&raw), shape);
  OwnedAttributes attributes(raw);
  check(dnnl_primitive_attr_set_scratchpad_mode(raw, dnnl_scratchpad_mode_user), shape);
  if (shape.alpha != 1.0f) check(dnnl_primitive_attr_set_output_scales(raw, 1, 0, &shape.alpha), shape);
  if (shape.beta != 0.0f) {
    dnnl_post_ops_t post_ops = nullptr;
    check(dnnl_post_ops_create(&post_ops), shape);
    const OwnedPostOps owned(post_ops);
    check(dnnl_post_ops_append_sum(post_ops, shape.beta), shape);
    check(dnnl_primitive_attr_set_post_ops(raw, post_ops), shape);
  }
  return attributes;
}

OwnedMemory make_memory(const Cache& cache, const MatmulShape& shape, const dnnl_memory_desc_t& desc) {
  dnnl_memory_t memory = nullptr;
  check(dnnl_memory_create(&memory, &desc, cache.engine.get(), nullptr), shape);
  return OwnedMemory(memory);
}

void start(Cache& cache, const MatmulShape& shape) {
  dnnl_engine_t engine = nullptr;
  check(dnnl_engine_create(&engine, dnnl_cpu, 0), shape);
  cache.engine.reset(engine);
  dnnl_stream_t stream = nullptr;
  check(dnnl_stream_create(&stream, engine, dnnl_stream_default_flags), shape);
  cache.stream.reset(stream);
}

struct Operands {
  dnnl_memory_desc_t a, b, c, bias;
};

Operands operands_of(const MatmulShape& shape) {
  return {.a = matrix(shape, shape.m, shape.k, shape.transpose_a, shape.lda, shape.input_type),
          .b = matrix(shape, shape.k, shape.n, shape.transpose_b, shape.ldb, shape.input_type),
          .c = matrix(shape, shape.m, shape.n, false, shape.ldc, shape.output_type),
          .bias = matrix(shape, 1, shape.n, false, shape.n, shape.output_type)};
}

// Whether rows of B drive each other out of the first cache level: those whose length is a multiple of 2 KiB
// begin in two of its 64 sets at most. oneDNN would read them where they lie, unless their length is a power
// of two: then, and in all other types and layouts, it copies blocks of B together first.
bool rows_collide(const MatmulShape& shape) {
  const bool dense = shape.lda == 0 && shape.ldb == 0 && shape.ldc == 0;
  const bool left_lie =
      dense && !shape.bias && !shape.transpose_b && !std::has_single_bit(static_cast<std::uint64_t>(shape.n));
  // Of such a product oneDNN may divide k among many threads, and not in the same way.
  const bool divided = shape.transpose_a && shape.m <= 512 && shape.k >= 2048;
  return left_lie && !divided && shape.input_type == DType::fp32 && shape.m >= 64 &&
         shape.n * bytes_of(shape.input_type) % 2048 == 0;
}

// The same operands such that oneDNN copies them together, too: B as one of several matrices that lie side by
// side, each row of one behind that of the other, of which there is one. It changes no sum.
Operands copied_operands_of(const MatmulShape& shape) {
  const auto one_of_several = [&](std::int64_t rows, std::int64_t columns, dnnl_format_tag_t tag) {
    const dnnl_dims_t dims = {1, 1, rows, columns};
    dnnl_memory_desc_t desc;
    check(dnnl_memory_desc_init_by_tag(&desc, 4, dims, type_of(shape.input_type), tag), shape);
    return desc;
  };
  return {.a = one_of_several(shape.m, shape.k, shape.transpose_a ? dnnl_abdc : dnnl_abcd),
          .b = one_of_several(shape.k, shape.n, dnnl_acbd),
          .c = one_of_several(shape.m, shape.n, dnnl_abcd),
          .bias = {}};
}

// Null where oneDNN does not have it on this processor.
OwnedDescription describe_product(const Cache& cache, const MatmulShape& shape, const Operands& operands) {
  dnnl_matmul_desc_t desc;
  check(dnnl_matmul_desc_init(&desc, &operands.a, &operands.b, shape.bias ? &operands.bias : nullptr,
                              &operands.c),
        shape);
  const OwnedAttributes attributes = make_attributes(shape);
  dnnl_primitive_desc_t description = nullptr;
  const dnnl_status_t status =
      dnnl_primitive_desc_create(&description, &desc, attributes.get(), cache.engine.get(), nullptr);
  if (status == dnnl_unimplemented && shape.input_type == DType::bf16) return nullptr;
  check(status, shape);
  return OwnedDescription(description);
}

// Whether it is computed by blocks of oneDNN's "brgemm", the only algorithm that takes such operands well.
bool by_blocks(const OwnedDescription& description) {
  const char* algorithm = nullptr;
  const dnnl_status_t status =
      dnnl_primitive_desc_query(description.get(), dnnl_query_impl_info_str, 0, &algorithm);
  return status == dnnl_success && std::string_view(algorithm).starts_with("brg");
}

// The stored rows and columns of A or B.
struct Stored {
  std::int64_t rows = 0, columns = 0, leading = 0;
};
Stored stored(std::int64_t rows, std::int64_t columns, bool transposed, std::int64_t leading) {
  if (transposed) std::swap(rows, columns);
  return {rows, columns, leading == 0 ? columns : leading};
}
Stored stored_a(const MatmulShape& s) { return stored(s.m, s.k, s.transpose_a, s.lda); }
Stored stored_b(const MatmulShape& s) { return stored(s.k, s.n, s.transpose_b, s.ldb); }
Stored stored_c(const MatmulShape& s) { return stored(s.m, s.n, false, s.ldc); }

Entry make_entry(const Cache& cache, const MatmulShape& shape);

Entry make_widened_entry(const Cache& cache, const MatmulShape& shape) {
  MatmulShape wide = shape;
  wide.input_type = wide.output_type = DType::fp32;
  wide.lda = wide.ldb = 0;
  if (shape.output_type == DType::bf16) wide.ldc = 0;
  Entry entry = make_entry(cache, wide);
  Widened widened{.shape = wide};
  std::int64_t bytes = workspace_part_bytes(entry.workspace_bytes);
  const auto take = [&](std::int64_t numel) {
    return std::exchange(bytes, bytes + workspace_part_bytes(numel * bytes_of(DType::fp32)));
  };
  widened.a = take(shape.m * shape.k);
  widened.b = take(shape.k * shape.n);
  if (shape.output_type == DType::bf16) widened.c = take(shape.m * shape.n);
  if (shape.output_type == DType::bf16 && shape.bias) widened.bias = take(shape.n);
  entry.widened = widened;
  entry.workspace_bytes = bytes;
  return entry;
}

Entry make_entry(const Cache& cache, const MatmulShape& shape) {
  const bool copies = rows_collide(shape);
  Operands operands = copies ? copied_operands_of(shape) : operands_of(shape);
  OwnedDescription description = describe_product(cache, shape, operands);
  if (!description) return make_widened_entry(cache, shape);
  if (copies && !by_blocks(description)) {
    operands = operands_of(shape);
    description = describe_product(cache, shape, operands);
  }
  dnnl_primitive_t primitive = nullptr;
  check(dnnl_primitive_create(&primitive, description.get()), shape);
  const dnnl_memory_desc_t* scratch =
      dnnl_primitive_desc_query_md(description.get(), dnnl_query_scratchpad_md, 0);
  Entry entry;
  entry.primitive.reset(primitive);
  entry.a = make_memory(cache, shape, operands.a);
  entry.b = make_memory(cache, shape, operands.b);
  entry.c = make_memory(cache, shape, operands.c);
  if (shape.bias) entry.bias = make_memory(cache, shape, operands.bias);
  entry.scratch = make_memory(cache, shape, *scratch);
  entry.workspace_bytes = static_cast<std::int64_t>(dnnl_memory_desc_get_size(scratch));
  return entry;
}

void check_shape(const MatmulShape& s, int threads) {
  check_matmul(s);
  if (threads < 1)
    throw UsageError(describe(s) + ": threads is " + std::to_string(threads) + ", at least 1 is needed");
}

// Needs a ThreadsGuard around it.
Entry& entry_of(Cache& cache, const MatmulShape& shape, int threads) {
  const MatmulKey key = key_of(shape, threads);
  const auto found = cache.entries.find(key);
  if (found != cache.entries.end()) return found->second;
  check_shape(shape, threads);
  if (!cache.engine) start(cache, shape);
  return cache.entries.emplace(key, make_entry(cache, shape)).first->second;
}

Cache& this_threads_cache() {
  thread_local Cache cache;
  return cache;
}

void point(dnnl_memory_t memory, const void* data, const MatmulShape& shape) {
  check(dnnl_memory_set_data_handle(memory, const_cast<void*>(data)), shape);
}

}  // namespace

std::int64_t matmul_workspace_bytes(const MatmulShape& shape, const Target& target) {
  if (takes_few_rows(shape)) {
    check_shape(shape, target.threads);
    return 0;
  }
  const ThreadsGuard guard(target.threads);
  return workspace_part_bytes(entry_of(this_threads_cache(), shape, target.threads).workspace_bytes);
}

namespace {

struct Pointers {
  const void *a, *b, *bias;
  void* c;
};

void execute(Cache& cache, Entry& entry, const MatmulShape& shape, void* scratch, const Pointers& at) {
  point(entry.a.get(), at.a, shape);
  point(entry.b.get(), at.b, shape);
  point(entry.c.get(), at.c, shape);
  point(entry.scratch.get(), scratch, shape);
  std::array<dnnl_exec_arg_t, 5> arguments = {{{DNNL_ARG_SRC, entry.a.get()},
                                               {DNNL_ARG_WEIGHTS, entry.b.get()},
                                               {DNNL_ARG_DST, entry.c.get()},
                                               {DNNL_ARG_SCRATCHPAD, entry.scratch.get()},
                                               {DNNL_ARG_BIAS, entry.bias.get()}}};
  if (shape.bias) point(entry.bias.get(), at.bias, shape);
  check(
      dnnl_primitive_execute(entry.primitive.get(), cache.stream.get(), shape.bias ? 5 : 4, arguments.data()),
      shape);
  check(dnnl_stream_wait(cache.stream.get()), shape);
}

// From rows that are `in_leading` elements apart to rows that are `out_leading` apart.
void cast_rows(const ComputeContext& context, const Stored& of, DType in_type, const void* in,
               std::int64_t in_leading, DType out_type, void* out, std::int64_t out_leading) {
  if (of.columns == in_leading && of.columns == out_leading)
    return cpu::cast(context, of.rows * of.columns, in_type, in, out_type, out);
  for (std::int64_t row = 0; row < of.rows; ++row)
    cpu::cast(context, of.columns, in_type,
              static_cast<const std::byte*>(in) + row * in_leading * bytes_of(in_type), out_type,
              static_cast<std::byte*>(out) + row * out_leading * bytes_of(out_type));
}

void execute_widened(const ComputeContext& context, Cache& cache, Entry& entry, const MatmulShape& shape,
                     const Pointers& at) {
  auto* const memory = static_cast<std::byte*>(context.workspace.data);
  const Widened& wide = *entry.widened;
  const auto widen = [&](const Stored& of, const void* from, std::int64_t offset) {
    cast_rows(context, of, DType::bf16, from, of.leading, DType::fp32, memory + offset, of.columns);
    return memory + offset;
  };
  Pointers in_fp32 = at;
  in_fp32.a = widen(stored_a(shape), at.a, wide.a);
  in_fp32.b = widen(stored_b(shape), at.b, wide.b);
  if (shape.output_type == DType::fp32) return execute(cache, entry, wide.shape, memory, in_fp32);
  const Stored c = stored_c(shape);
  in_fp32.c = memory + wide.c;
  if (shape.beta != 0.0f) widen(c, at.c, wide.c);
  if (shape.bias) in_fp32.bias = widen({1, shape.n, shape.n}, at.bias, wide.bias);
  execute(cache, entry, wide.shape, memory, in_fp32);
  cast_rows(context, c, DType::fp32, in_fp32.c, c.columns, DType::bf16, at.c, c.leading);
}

}  // namespace

void matmul(const ComputeContext& context, const MatmulShape& shape, const void* a, const void* b,
            const void* bias, void* c) {
  if (takes_few_rows(shape)) return few_rows(context, shape, a, b, bias, c);
  const ThreadsGuard guard(context.threads);
  Cache& cache = this_threads_cache();
  Entry& entry = entry_of(cache, shape, context.threads);
  check_workspace(context, workspace_part_bytes(entry.workspace_bytes), "matmul");
  check_bias(shape, bias);
  const Pointers at{a, b, bias, c};
  if (entry.widened)
    execute_widened(context, cache, entry, shape, at);
  else
    execute(cache, entry, shape, context.workspace.data, at);
}

}  // namespace tessera::kernels::cpu
