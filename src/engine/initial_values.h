// What initialize() gave a rank, as hashes that the ranks exchange: no two may start from other values.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "tessera/communicator.h"
#include "tessera/layout.h"
#include "tessera/mesh.h"
#include "tessera/pipeline.h"
#include "tessera/program.h"

namespace tessera {

class InitialValues {
 public:
  // `identity` is a hash of where all values come from. `layout` and `mesh` outlive this.
  InitialValues(std::uint64_t identity, const Layout& layout, const Partition& partition, const Mesh& mesh,
                const Spread& parameters);
  // The next of the values that this rank holds of the flat.
  void add(FlatId flat, std::span<const float> values);
  // Collective. CommunicationError naming the first rank whose identity is not rank 0's, or whose values are
  // not those of the first rank that holds the same.
  void compare(Communicator& states) const;

 private:
  // A flat that several pipeline ranks hold, for it is tied: their hashes of all else have nothing in common.
  struct Shared {
    FlatId flat = 0;
    std::vector<int> holders;  // pipeline ranks
    std::uint64_t hash = 0;    // 0 where this rank does not hold it
  };
  bool is_cut(FlatId flat) const { return layout_.flat(flat).over == TensorShare::cut; }
  int first_of_copies(int rank, int pipeline_rank, bool cut) const;

  const Layout& layout_;
  const Mesh& mesh_;
  const Spread parameters_;  // how they lie on the ranks
  std::vector<Shared> shared_;
  std::uint64_t identity_ = 0;
  // Hashes of all that no other pipeline rank holds. The first is of what tensor ranks have copies of, the
  // second of what is cut.
  std::uint64_t own_copied_ = 0, own_cut_ = 0;
};

}  // namespace tessera
