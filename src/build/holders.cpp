#include "src/build/holders.h"

#include <algorithm>

namespace tessera {

IdVector<std::vector<int>> holders_of(const Layout& layout, const Partition& partition) {
  IdVector<std::vector<int>> holders;
  for (const Flat& flat : layout.flats()) holders.push_back({partition.rank_of(flat.unit)});
  const auto units = layout.units().count();
  for (int rank = 0; rank < partition.ranks(); ++rank)
    for (UnitId unit = 0; unit < units; ++unit) {
      if (partition.rank_of(unit) != rank) continue;
      for (FlatId flat : layout.flats_used_by(unit)) {
        std::vector<int>& known = holders[flat];
        if (std::ranges::find(known, rank) == known.end()) known.push_back(rank);
      }
    }
  return holders;
}

}  // namespace tessera
