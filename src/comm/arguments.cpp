#include "src/comm/arguments.h"

#include <fmt/format.h>

#include <limits>

namespace tessera::comm {

void check_range(const char* call, const char* what, const void* data, std::int64_t count, int bytes,
                 int blocks) {
  const std::int64_t most = std::numeric_limits<std::int64_t>::max() / bytes / blocks;
  if (count < 0) throw UsageError(fmt::format("{} of {} {}: use 0 or more", call, count, what));
  if (count > most) throw UsageError(fmt::format("{} of {} {}: use {} or less", call, count, what, most));
  if (data == nullptr && count > 0)
    throw UsageError(fmt::format("{} of {} {} at a null pointer", call, count, what));
}

void check_rank(const char* call, const char* what, int rank, int world) {
  if (rank < 0 || rank >= world)
    throw UsageError(fmt::format("{} with {} {}: the group has ranks 0 to {}", call, what, rank, world - 1));
}

bool overlap(const void* a, std::int64_t a_bytes, const void* b, std::int64_t b_bytes) {
  const auto first = reinterpret_cast<std::uintptr_t>(a), second = reinterpret_cast<std::uintptr_t>(b);
  return first < second + static_cast<std::uintptr_t>(b_bytes) &&
         second < first + static_cast<std::uintptr_t>(a_bytes);
}

void check_all_gather(const void* shard, const void* full, std::int64_t shard_bytes, int rank, int world) {
  check_range("all_gather", "bytes", shard, shard_bytes);
  check_range("all_gather", "bytes", full, shard_bytes, 1, world);
  const bool in_place = shard == static_cast<const char*>(full) + rank * shard_bytes;
  if (!in_place && overlap(shard, shard_bytes, full, world * shard_bytes))
    throw UsageError(fmt::format(
        "all_gather: the shard overlaps the full buffer; in place it lies at byte {}", rank * shard_bytes));
}

void check_reduce_scatter(const ReduceScatter& call, int rank, int world) {
  constexpr int kFp32 = sizeof(float);  // of the shard, and no wire's type has more
  const Contributors& some = call.contributors;
  if (some.first < 0 || some.count < (some.first > 0 ? 1 : 0) || some.count > world - some.first)
    throw UsageError(fmt::format(
        "reduce_scatter with {} contributors from rank {} on: the group has {} ranks; use 1 to {}, "
        "within the group, or 0 from rank 0 on for all",
        some.count, some.first, world, world));
  const bool contributes = some.contains(rank);
  if (!contributes && call.full != nullptr)
    throw UsageError(
        fmt::format("reduce_scatter with {} contributors from rank {} on: rank {} is not among them, so its "
                    "full buffer must be null",
                    some.count, some.first, rank));
  check_range("reduce_scatter", "elements", contributes ? call.full : call.shard, call.shard_numel, kFp32,
              world);
  check_range("reduce_scatter", "elements", call.shard, call.shard_numel);
  const bool in_place = contributes && call.wire == DType::fp32 && !call.accumulate &&
                        call.shard == static_cast<const float*>(call.full) + rank * call.shard_numel;
  const std::int64_t shard_bytes = call.shard_numel * kFp32;
  const std::int64_t full_bytes = contributes ? world * call.shard_numel * bytes_of(call.wire) : 0;
  if (!in_place && overlap(call.shard, shard_bytes, call.full, full_bytes))
    throw UsageError(
        "reduce_scatter: the shard overlaps the full buffer; it may be this rank's slice of it if the wire "
        "is fp32 and "
        "accumulate is false");
  const auto overlaps_squares = [&](const void* data, std::int64_t bytes) {
    return call.squares.sum != nullptr && overlap(call.squares.sum, sizeof(SquareSum), data, bytes);
  };
  if (overlaps_squares(call.shard, shard_bytes) || overlaps_squares(call.full, full_bytes))
    throw UsageError("reduce_scatter: the sum of squares overlaps the shard or the full buffer");
}

}  // namespace tessera::comm
