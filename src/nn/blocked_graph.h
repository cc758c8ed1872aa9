// The values and parts of a rank that has several tensor blocks (tensor_blocks.h), made of those of one
// block.
#pragma once

#include <cstdint>
#include <vector>

#include "tessera/module.h"

namespace tessera::nn {

class BlockedGraph {
 public:
  // `inner` is of one block: of one rank of so many as there are blocks. `parameters` are the inner module's.
  // Both outlive this. Throws UsageError for a graph that means nothing, and for one that several blocks of a
  // rank cannot share.
  BlockedGraph(const UnitGraph& inner, const std::vector<ParameterSpec>& parameters, int blocks, int ranks);

  // What a part of the rank's graph does.
  struct Step {
    enum class Kind : std::uint8_t {
      part,      // that part of the inner graph, for each block
      sum,       // adds the blocks' parts of a sum
      gradients  // adds the blocks' parts of gradients
    };
    Kind kind = Kind::part;
    int part = -1;             // which of the inner graph runs
    ValueId value = kNoValue;  // which of the inner graph is added over blocks
  };
  // Where a block's part of an inner value lies.
  struct Lies {
    ValueId in = kNoValue;    // the value of the rank's graph, or a shared one
    std::int64_t stride = 0;  // from one block's to the next; 0: all blocks read the same
  };
  // What stands for the gradient of a parameter of which each block makes a part.
  struct Parts {
    ValueId parts = kNoValue, all = kNoValue;  // this rank's blocks', and those of all ranks
    std::int64_t numel = 0;                    // of the parameter
    std::int64_t stride = 0;                   // bytes from one block's to the next
    DType type = DType::fp32;
    int first_part = -1;  // of the inner graph, that writes it; later ones add
  };

  const UnitGraph& graph() const { return graph_; }
  const Step& step(int part) const { return steps_[part]; }
  const Lies& lies(ValueId inner) const { return lies_[inner]; }
  int inner_values() const { return lies_.count(); }
  // Elements of a partial inner value, and the value of the rank's graph that is the sum of its blocks.
  // There is none, kNoValue, where an exchange takes the only block as it is.
  std::int64_t numel_of_sum(ValueId inner) const {
    return inner_.values[inner].bytes / bytes_of(inner_.values[inner].type);
  }
  ValueId sum_of(ValueId inner) const { return sums_[inner]; }
  // By parameter; no `numel` where a gradient is written as the inner module writes it.
  const IdVector<Parts>& gradients() const { return gradients_; }

 private:
  void check_aliases() const;
  IdVector<bool> in_a_row() const;
  void place_values();
  void place_gradients();
  void place_parts();
  bool reads_in_place(const Step& step, ValueId value) const;
  void keep_what_is_read();
  ValueId add(ValueSpec value);
  std::vector<ValueId> renamed(const std::vector<ValueId>& ids) const;
  int own() const { return blocks_ / ranks_; }

  const UnitGraph& inner_;
  const std::vector<ParameterSpec>& parameters_;
  const int blocks_, ranks_;
  UnitGraph graph_;
  IdVector<Step> steps_;
  IdVector<Lies> lies_;        // by inner value
  IdVector<ValueId> sums_;     // by inner value: of a partial one, what the sum of this rank's blocks is
  IdVector<Parts> gradients_;  // by parameter
};

}  // namespace tessera::nn
