// A module whose tensor ranks each do what several smaller ranks would do: the same bits on any number of
// them. It wraps a module and changes nothing in it.
//
// With b blocks on t ranks, each rank has b / t blocks. A part runs once for each of them, as rank k of b
// would run it. What a block has of a value, and of a cut parameter, lies behind what the block before has.
// Sums over blocks are balanced trees: a rank adds its own blocks, and an exchange adds the ranks, where
// there are several. The gradient of a parameter that all ranks have, and of which each makes a part, is
// gathered by blocks and added in each microbatch, so that every rank has all of it.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <tuple>
#include <vector>

#include "tessera/module.h"

namespace tessera::nn {

// How a graph of one block becomes that of a rank.
class BlockedGraph {
 public:
  // `inner` is of one block: of one rank of so many as there are blocks. `parameters` are the inner module's.
  BlockedGraph(const UnitGraph& inner, const std::vector<ParameterSpec>& parameters, int blocks, int ranks);

  // What a part of the rank's graph does.
  struct Step {
    enum class Kind : std::uint8_t {
      part,      // that part of the inner graph, for each block
      sum,       // adds the blocks' parts of a sum
      gradients  // adds the blocks' parts of gradients
    };
    Kind kind = Kind::part;
    int part = -1;  // of the inner graph: the one that runs, or whose results are added
    // A sum adds what the rank's blocks have of `from`.
    ValueId from = kNoValue, to = kNoValue;
    std::int64_t numel = 0;
    std::int64_t stride = 0;  // bytes from one block's to the next
    DType type = DType::fp32;
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
  // By parameter; no `numel` where a gradient is written as the inner module writes it.
  const IdVector<Parts>& gradients() const { return gradients_; }

 private:
  void check_aliases() const;
  IdVector<bool> in_a_row() const;
  void place_values();
  void place_gradients();
  void place_parts();
  void keep_what_is_read();
  ValueId add(ValueSpec value);
  std::vector<ValueId> renamed(const std::vector<ValueId>& ids) const;
  int own() const { return blocks_ / ranks_; }

  const UnitGraph& inner_;
  const std::vector<ParameterSpec>& parameters_;
  const int blocks_, ranks_;
  UnitGraph graph_;
  IdVector<Step> steps_;
  IdVector<Lies> lies_;  // by inner value
  // By the rank's part: what it reads in place of what several ranks would have gathered of it.
  IdVector<std::vector<ValueId>> aliases_;
  IdVector<ValueId> sums_;     // by inner value: of a partial one, what the sum of this rank's blocks is
  IdVector<Parts> gradients_;  // by parameter
};

class BlockedModule final : public Module {
 public:
  // `before` is the module whose output is this one's input, null for the first; it outlives this.
  BlockedModule(std::unique_ptr<Module> inner, const BlockedModule* before, int blocks);

  std::vector<ParameterSpec> parameters() const override;
  bool parameters_read_in_forward_only() const override { return inner_->parameters_read_in_forward_only(); }
  std::vector<Initial> initials() const override { return inner_->initials(); }
  ModuleNeeds needs(const BatchShape& shape, const Target& target) const override;
  std::string numerics(const BatchShape& shape, const Target& target) const override;
  void run(int part, const ModuleContext& context) override;

 private:
  struct Plan;
  std::shared_ptr<const Plan> plan_of(const BatchShape& shape, const Target& target) const;
  Target of_block(const Target& target) const { return {target.threads, target.device, blocks_}; }
  void check_aligned(const Plan& plan) const;
  void run_blocks(const Plan& plan, int part, const ModuleContext& context);
  void add_gradients(const Plan& plan, int part, const ModuleContext& context) const;

  const std::unique_ptr<Module> inner_;
  const BlockedModule* const before_;
  const int blocks_;
  const std::vector<ParameterSpec> parameters_;  // the inner module's
  IdVector<std::int64_t> block_bytes_;           // by parameter: from one block to the next; 0: not cut
  // Ranks may be threads that share the module.
  mutable std::mutex mutex_;
  mutable std::map<std::tuple<std::int64_t, std::int64_t, int, DeviceType, int>, std::shared_ptr<const Plan>>
      plans_;
};

}  // namespace tessera::nn
