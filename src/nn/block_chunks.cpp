#include "src/nn/block_chunks.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "src/nn/lora_parts.h"
#include "src/nn/support.h"
#include "tessera/error.h"

namespace tessera::nn {
namespace {

// clang-format off
// What has pieces. Of queries, keys and values it is what the product makes (BlockFlow::own_qkv), and its gradient.
constexpr ValueId kInChunks[] = {
    kInput, kOutput, kOutputGradient,
    kNorm1, kMean1, kRstd1, kQkv, kAttention, kAttentionBranch, kMiddle, kNorm2, kMean2, kRstd2, kPreactivation, kHidden,
    kMlpBranchGradient, kHiddenGradient, kPreactivationGradient, kNorm2Gradient, kMiddleGradient,
    kAttentionBranchGradient, kAttentionGradient, kQkvGradient, kNorm1Gradient,
    kNorm1Whole, kAttentionPartial, kAttentionSum, kNorm2Whole, kMlpPartial, kMlpSum, kMlpBranchWhole, kNorm2Partial,
    kNorm2Sum, kAttentionBranchWhole, kNorm1Partial, kNorm1Sum,
    kQkvAdapter, kProjectionAdapter, kUpAdapter, kDownAdapter,
    kQkvAdapterGradient, kProjectionAdapterGradient, kUpAdapterGradient, kDownAdapterGradient};
// clang-format on

using Runs = std::vector<void (BlockRun::*)() const>;

class InChunks {
 public:
  InChunks(const BlockFlow& flow, const std::vector<BlockPart>& parts) : flow_(flow), parts_(parts) {}

  std::vector<BlockPart> placed() {
    using Run = BlockRun;
    stages({{&Run::norm1}, {&Run::qkv}});
    whole({&Run::part_of_head, &Run::heads, &Run::attention, &Run::cached_attention});
    second_half();
    whole({&Run::norm2_again});
    // Backward. Gradients of parameters run while the last chunks of one exchange and the first of the next
    // travel.
    stages({{&Run::drop_mlp_gradient}, {&Run::down_gradient, &Run::activation_gradient, &Run::up_gradient}});
    whole({&Run::up_parameters});
    stages({{&Run::norm2_sum}});
    whole({&Run::norm2_gradient});
    stages({{&Run::drop_attention_gradient}});
    whole({&Run::down_parameters});
    stages({{&Run::projection_gradient}});
    whole({&Run::attention_gradient, &Run::heads_gradient});
    stages({{&Run::qkv_gradient}});
    whole({&Run::qkv_parameters});
    stages({{&Run::norm1_sum}});
    whole(
        {&Run::norm1_gradient, &Run::projection_parameters, &Run::norm2_parameters, &Run::norm1_parameters});
    for (const BlockPart& part : parts_)
      if (std::ranges::find(placed_, part.run, &BlockPart::run) == placed_.end())
        throw Error(fmt::format("block: part '{}' has no place among chunks", part.name));
    return std::move(placed_);
  }

 private:
  // A chunk enters a stage when the next one has left the stage before: what is exchanged between the stages
  // then travels meanwhile.
  void stages(const std::vector<Runs>& all) {
    const auto count = static_cast<int>(all.size());
    for (int turn = 0; turn < flow_.chunks + count - 1; ++turn)
      for (int stage = 0; stage < count; ++stage)
        if (const int chunk = turn - stage; chunk >= 0 && chunk < flow_.chunks)
          for (const auto run : all[static_cast<std::size_t>(stage)]) place(run, chunk);
  }
  // What ends attention is summed, a norm goes over it, and it is gathered again for the MLP. So the first
  // chunk goes through at once, behind one more product to run while it travels. Each other one follows while
  // the MLP works on the one before.
  void second_half() {
    using Run = BlockRun;
    const auto run = [&](const Runs& runs, int chunk) {
      for (const auto part : runs)
        if (chunk >= 0 && chunk < flow_.chunks) place(part, chunk);
    };
    const Runs norm = {&Run::attention_branch, &Run::norm2};
    for (int chunk = 0; chunk < 2; ++chunk) run({&Run::projection}, chunk);
    run(norm, 0);
    for (int chunk = 2; chunk < flow_.chunks; ++chunk) run({&Run::projection}, chunk);
    for (int chunk = 0; chunk < flow_.chunks; ++chunk) {
      run({&Run::up, &Run::activation}, chunk);
      run(norm, chunk + 1);
      run({&Run::down}, chunk);
      run({&Run::mlp_branch}, chunk - 1);
    }
    run({&Run::mlp_branch}, flow_.chunks - 1);
  }
  void whole(const Runs& runs) {
    for (const auto run : runs) place(run, kAllChunks);
  }

  // Those of the layer's adapters go with it: the gradients of A and B where those of its weight are.
  void place(void (BlockRun::*run)() const, int chunk) {
    for (const BlockLayer layer : kBlockLayers) {
      const AdapterRuns& adapters = adapter_runs(layer);
      if (run == adapters.of_layer) place_one(adapters.adapter, chunk);
      if (run == adapters.of_layer_gradient) place_one(adapters.gradient, chunk);
      if (run == adapters.of_layer_parameters) place_one(adapters.gradients, chunk);
    }
    place_one(run, chunk);
  }
  // Not where the block has no such part.
  void place_one(void (BlockRun::*run)() const, int chunk) {
    const auto found = std::ranges::find(parts_, run, &BlockPart::run);
    if (found == parts_.end()) return;
    BlockPart& part = placed_.emplace_back(*found);
    part.chunk = chunk;
    if (chunk == kAllChunks) return;
    for (std::vector<ValueId>* values : {&part.reads, &part.writes})
      for (ValueId& value : *values) value = flow_.piece(value, chunk);
  }

  const BlockFlow& flow_;
  const std::vector<BlockPart>& parts_;
  std::vector<BlockPart> placed_;
};

}  // namespace

ValueId BlockFlow::piece(ValueId whole, int chunk) const {
  if (whole == own_qkv) whole = kQkv;
  if (whole == own_qkv_gradient) whole = kQkvGradient;
  const auto place = std::ranges::find(kInChunks, whole) - std::begin(kInChunks);
  if (place == std::ssize(kInChunks)) throw Error(fmt::format("block: value {} has no pieces", whole));
  return wholes() + static_cast<ValueId>(place) * chunks + chunk;
}

std::vector<BlockPart> in_chunks(const BlockFlow& flow, const std::vector<BlockPart>& parts) {
  return InChunks(flow, parts).placed();
}

void cut_into_chunks(const BlockFlow& flow, const BlockShapes& shapes, const Target& target,
                     IdVector<ValueSpec>& values) {
  for (const ValueId id : kInChunks) {
    const ValueId whole = id == kQkv ? flow.own_qkv : id == kQkvGradient ? flow.own_qkv_gradient : id;
    add_pieces(values, whole, whole >= 0 ? values[whole].bytes : shapes.stream_bytes, flow.chunks);
  }
  for (const ValueId made : kInChunks)
    if (made >= 0 && values[made].exchanged != kNoValue) exchange_in_chunks(values, made, target);
  // The parameters behind it read it when the gradient's first chunks are there already.
  values[ValueId{kHiddenGradient}].over = kNoValue;
}

}  // namespace tessera::nn
