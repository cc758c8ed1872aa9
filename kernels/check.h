// Argument checks and workspace arithmetic that the backends share.
#pragma once

#include <cstdint>
#include <string>

#include "kernels/kernels.h"
#include "tessera/dtype.h"

namespace tessera::kernels {

// Parts of a workspace begin on cache lines.
constexpr std::int64_t workspace_part_bytes(std::int64_t bytes) { return (bytes + 63) / 64 * 64; }

void check_workspace(const ComputeContext& context, std::int64_t needed_bytes, const char* op);
void check_compute_type(DType type, const char* op);
void check_beta(float beta, const char* op);
void check_copy(const CopyShape& shape);
void check_chain(std::size_t contributions, float beta);
void check_squares(const Squares& squares);
void check_update(const OptimizerArguments& arguments);
void check_cached_attention(const CachedAttentionShape& shape);
void check_rotary(const RotaryShape& shape, const char* op);
void check_embedding(const EmbeddingShape& shape, const char* op);
// embedding_forward() adds positions only where the table has every token.
void check_whole_table(const EmbeddingShape& shape, const void* position_table);
void check_positions(const PositionShape& shape);
void check_softmax(const SoftmaxShape& shape, const char* op);
// Targets in the host's memory.
void check_targets(std::int64_t rows, std::int64_t vocabulary, const std::int32_t* targets, const char* op);
void check_dropout(const DropoutShape& shape, const Dropout& dropout);
// Two arguments that go together must both be given or both be left out.
void check_pair(bool first, bool second, const char* what);
void check_attention(const AttentionShape& shape);
std::string describe(const MatmulShape& shape);
void check_matmul(const MatmulShape& s);
void check_bias(const MatmulShape& shape, const void* bias);

template <class T>
T* offset_bytes(void* base, std::int64_t bytes) {
  return reinterpret_cast<T*>(static_cast<char*>(base) + bytes);
}

inline const void* element(const void* base, DType type, std::int64_t index) {
  return static_cast<const char*>(base) + index * bytes_of(type);
}
inline void* element(void* base, DType type, std::int64_t index) {
  return static_cast<char*>(base) + index * bytes_of(type);
}

}  // namespace tessera::kernels
