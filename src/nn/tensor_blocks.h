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

#include "src/nn/blocked_graph.h"
#include "tessera/module.h"

namespace tessera::nn {

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
  Target of_block(const Target& target) const {
    return {target.threads, target.device, blocks_, 1, target.gpu};
  }
  void check_aligned(const Plan& plan) const;
  void add_blocks(const Plan& plan, ValueId value, const ModuleContext& context) const;
  void run_blocks(const Plan& plan, int part, const ModuleContext& context);
  void add_gradients(const Plan& plan, int part, const ModuleContext& context) const;

  const std::unique_ptr<Module> inner_;
  const BlockedModule* const before_;
  const int blocks_;
  const std::vector<ParameterSpec> parameters_;  // the inner module's
  IdVector<std::int64_t> block_bytes_;           // by parameter: from one block to the next; 0: not cut
  // Ranks may be threads that share the module.
  mutable std::mutex mutex_;
  mutable std::map<std::tuple<std::int64_t, std::int64_t, std::int64_t, int, DeviceType, int, int>,
                   std::shared_ptr<const Plan>>
      plans_;
};

}  // namespace tessera::nn
