// Which ranks of a world share a host.
#pragma once

#include <algorithm>
#include <vector>

#include "src/comm/staged/shared.h"
#include "tessera/id_vector.h"

namespace tessera::comm {

// The hosts of a world, as one rank sees them.
struct RankHosts {
  int rank = 0;                   // this one
  IdVector<int> first_rank = {};  // of each rank, the first rank on its host

  int ranks() const { return first_rank.count(); }
  int first() const { return first_rank[rank]; }
  bool is_here(int other) const { return first_rank[other] == first(); }
  int ranks_here() const { return static_cast<int>(std::ranges::count(first_rank, first())); }
  bool several() const { return ranks_here() != ranks(); }
  // The ranks on other hosts.
  std::vector<int> others() const {
    std::vector<int> result;
    for (int other = 0; other < ranks(); ++other)
      if (!is_here(other)) result.push_back(other);
    return result;
  }
  // How large the range is that this host's ranks share, with `room_bytes` for groups; 0: 8 MiB a rank.
  std::int64_t range_bytes(std::int64_t room_bytes) const {
    constexpr std::int64_t kRoomPerRank = std::int64_t{8} << 20;
    return SharedWorld::range_bytes(ranks(), room_bytes > 0 ? room_bytes : ranks_here() * kRoomPerRank);
  }
};

}  // namespace tessera::comm
