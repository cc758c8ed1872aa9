// What the arguments of a collective must be, whoever carries it out. Every check throws UsageError naming
// the call and what would be right.
#pragma once

#include <cstdint>

#include "tessera/communicator.h"

namespace tessera::comm {

// `bytes` of one of what is counted, of each of which the call has as many as there are `blocks`.
void check_range(const char* call, const char* what, const void* data, std::int64_t count, int bytes = 1,
                 int blocks = 1);
void check_rank(const char* call, const char* what, int rank, int world);
// As Communicator's calls of these names take them, on a rank of a group.
void check_all_gather(const void* shard, const void* full, std::int64_t shard_bytes, int rank, int world);
void check_reduce_scatter(const ReduceScatter& call, int rank, int world);

// Whether two ranges of memory have a byte in common.
bool overlap(const void* a, std::int64_t a_bytes, const void* b, std::int64_t b_bytes);

}  // namespace tessera::comm
