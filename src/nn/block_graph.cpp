#include "src/nn/block_graph.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>

#include "kernels/kernels.h"
#include "src/nn/block_chunks.h"
#include "src/nn/block_costs.h"
#include "src/nn/lora_parts.h"
#include "src/nn/lora_shapes.h"
#include "src/nn/support.h"
#include "tessera/error.h"

namespace tessera::nn {
namespace {

BlockFlow flow_of(const TransformerConfig& config, const BlockShapes& shapes) {
  return {config, shapes.split, shapes.chunks, shapes.cached.capacity > 0};
}

// What several tensor ranks have besides.
void add_exchanged(const TransformerConfig& config, const BlockShapes& shapes, IdVector<ValueSpec>& values) {
  const BlockFlow flow = flow_of(config, shapes);
  const auto add = [&](ValueId id, std::string name, std::int64_t bytes, Held held, ValueId exchanged) {
    if (id != values.count()) throw Error("block: the values are out of order");
    values.push_back({.name = std::move(name), .bytes = bytes, .held = held, .exchanged = exchanged});
  };
  const auto whole = [&](ValueId id, std::string name, ValueId of) {
    if (!flow.gathers_rows()) return add(id, std::move(name), 0, Held::copied, kNoValue);
    if (of >= 0) values[of].held = Held::split;
    add(id, std::move(name), shapes.whole_bytes, Held::copied, of);
  };
  const auto all = [&](ValueId id, std::string name, ValueId of) {
    if (!flow.gathers_sums) return add(id, std::move(name), 0, Held::copied, kNoValue);
    values[of].bytes = shapes.own_bytes;
    values[of].held = Held::split;
    values[of].over = kNoValue;  // which has all rows
    add(id, std::move(name), shapes.whole_bytes, Held::copied, of);
  };
  const auto sum = [&](ValueId id, const std::string& of) {
    add(id, of + ".partial", shapes.sum_bytes * shapes.tensor_ranks, Held::partial, kNoValue);
    add(id + 1, of + ".sum", shapes.sum_bytes, Held::split, id);
  };
  whole(kNorm1Whole, "norm1.whole", kNorm1);
  sum(kAttentionPartial, "attention_branch");
  whole(kNorm2Whole, "norm2.whole", kNorm2);
  sum(kMlpPartial, "mlp_branch");
  whole(kMlpBranchWhole, "mlp_branch.gradient.whole", flow.mlp_branch);
  sum(kNorm2Partial, "norm2.gradient");
  whole(kAttentionBranchWhole, "attention_branch.gradient.whole", flow.attention_branch);
  sum(kNorm1Partial, "norm1.gradient");
  all(kAttentionBranchAll, "attention_branch.all", kAttentionBranch);
  add(kMlpBranch, "mlp_branch", 0, Held::split, kNoValue);
  all(kMlpBranchAll, "mlp_branch.all", kMlpBranch);
  all(kNorm2GradientAll, "norm2.gradient.all", kNorm2Gradient);
  all(kNorm1GradientAll, "norm1.gradient.all", kNorm1Gradient);
  // It has more rows than the gradient that it would lie over.
  if (flow.gathers_sums) values[ValueId{kAttentionBranchGradient}].over = kNoValue;
  if (!flow.shares) return;
  const std::int64_t whole_bytes = shapes.part_bytes * shapes.tensor_ranks;
  add(kOwnQkv, "qkv.own", shapes.own_qkv_bytes, Held::split, kNoValue);
  add(kPart, "qkv.part", shapes.part_bytes, Held::split, kNoValue);
  add(kPartsWhole, "qkv.parts", whole_bytes, Held::copied, kPart);
  add(kPartsPartial, "qkv.parts.gradient.partial", whole_bytes, Held::partial, kNoValue);
  values.back().type = config.type;  // attention's backward rounds them so
  add(kPartSum, "qkv.part.gradient.sum", shapes.part_bytes / bytes_of(config.type) * 4, Held::split,
      kPartsPartial);
  add(kOwnQkvGradient, "qkv.own.gradient", shapes.own_qkv_bytes, Held::split, kNoValue);
}

// What is kept for each token is query, key and value, the output of attention, the residual stream between
// the two halves, the input of the MLP's activation function, and the log-sum-exp of each head: for GPT-2 3 +
// 1 + 1 + 4 times `channels`. Recomputable are the outputs of both norms and of the activation function, 1 +
// 1 + 4 times `channels`: to compute these reads and writes memory once, while the matmuls around them take
// tens of operations per element.
IdVector<ValueSpec> block_values(const TransformerConfig& config, const BlockShapes& shapes) {
  const std::int64_t row_bytes = shapes.stream_rows * 4;
  const std::int64_t mean_bytes = config.norm.kind == NormKind::layer ? row_bytes : 0;
  const std::int64_t dropped_bytes = config.dropout > 0 ? shapes.stream_bytes : 0;
  using enum Keep;
  IdVector<ValueSpec> values = {
      {"norm1", shapes.stream_bytes, recomputable},
      {"norm1.mean", mean_bytes, recomputable},
      {"norm1.rstd", row_bytes, recomputable},
      {"qkv", shapes.qkv_bytes, saved},
      {"attention", shapes.heads_bytes, saved},
      {"log_sum_exp", shapes.rows * 4 * shapes.attention.heads, saved},
      {"attention_branch", shapes.stream_bytes},
      {"middle", shapes.stream_bytes, saved},
      {"norm2", shapes.stream_bytes, recomputable},
      {"norm2.mean", mean_bytes, recomputable},
      {"norm2.rstd", row_bytes, recomputable},
      {"preactivation", shapes.up_bytes, saved},
      {"hidden", shapes.hidden_bytes, recomputable},
      {"mlp_branch.gradient", dropped_bytes},
      {"hidden.gradient", shapes.hidden_bytes, pass, kHidden},
      {"preactivation.gradient", shapes.up_bytes},
      {"norm2.gradient", shapes.stream_bytes, pass, kNorm2},
      {"middle.gradient", shapes.stream_bytes},
      {"attention_branch.gradient", dropped_bytes, pass, kNorm2Gradient},
      {"attention.gradient", shapes.heads_bytes},
      {"qkv.gradient", shapes.qkv_bytes},
      {"norm1.gradient", shapes.stream_bytes, pass, kNorm1},
  };
  const LoraShapes adapters(config, shapes);
  for (const bool gradient : {false, true})
    for (const BlockLayer layer : kBlockLayers)
      values.push_back({.name = fmt::format("{}.lora{}", name_of(config, layer), gradient ? ".gradient" : ""),
                        .bytes = adapters.bytes(layer),
                        .keep = gradient ? pass : saved,
                        .held = splits_outputs(layer) == gradient ? Held::split : Held::copied});
  // GELU's gradient takes the place of its output's.
  if (config.mlp == MlpKind::gelu) values[ValueId{kPreactivationGradient}].over = kHiddenGradient;
  if (shapes.tensor_ranks > 1) add_exchanged(config, shapes, values);
  if (shapes.cached.capacity > 0) {
    values[ValueId{kLogSumExp}].bytes = 0;
    values.push_back({"keys_values", shapes.cached.cache_bytes(), cached});
  }
  return values;
}

// The places of a layer's parameters among the block's: of a norm, or of a linear layer.
std::vector<int> places_of(const TransformerConfig& config, const BlockPart& part) {
  if (part.work == BlockWork::adapter && part.writes.empty()) {
    const auto a = static_cast<int>(BlockIndices(config).adapters(part.adapted));
    return {a, a + 1};
  }
  if (part.gradients == nullptr) return {};
  const auto first = static_cast<int>(BlockIndices(config).*part.gradients);
  if (part.which == BlockGradients::bias) return {first + 1};
  const bool has_bias = part.work == BlockWork::norm ? config.norm.kind == NormKind::layer : config.biases;
  const bool two = has_bias && part.which == BlockGradients::all;
  return two ? std::vector<int>{first, first + 1} : std::vector<int>{first};
}

}  // namespace

// Each is a kernel or a few, so that memory is given up as soon as it can be, and the gradients of parameters
// stand apart.
std::vector<BlockPart> block_parts(const TransformerConfig& config, const BlockFlow& flow) {
  using enum Pass;
  using enum BlockWork;
  using Run = BlockRun;
  using At = BlockIndices;
  std::vector<BlockPart> all;
  const auto add = [&](BlockPart part) { all.push_back(std::move(part)); };
  // A layer whose result is a sum over ranks, and what finishes that. On one rank the layer does it itself.
  const auto ends = [&](BlockPart layer, ValueId partial, BlockPart finish) {
    if (!flow.split) layer.reads.insert(layer.reads.end(), finish.reads.begin() + 1, finish.reads.end());
    layer.writes = flow.split ? std::vector{partial} : finish.writes;
    add(std::move(layer));
    if (flow.split) add(std::move(finish));
  };

  add({"norm1", forward, &Run::norm1, {kInput}, {kNorm1, kMean1, kRstd1}, norm});
  add({"qkv", forward, &Run::qkv, {flow.qkv_input}, {flow.own_qkv}, qkv});
  if (flow.shares) {
    if (flow.chunks > 1) add({"part of a head", forward, &Run::part_of_head, {kOwnQkv}, {}});
    all.back().writes.push_back(kPart);
    add({"heads", forward, &Run::heads, {kOwnQkv, kPartsWhole}, {kQkv}, heads});
  }
  if (flow.cached)
    add({"attention",
         forward,
         &Run::cached_attention,
         {kQkv, flow.cache()},
         {kAttention, flow.cache()},
         attention});
  else
    add({"attention", forward, &Run::attention, {kQkv}, {kAttention, kLogSumExp}, attention});
  ends({"projection", forward, &Run::projection, {kAttention}, {}, projection}, kAttentionPartial,
       {"attention branch", forward, &Run::attention_branch, {kAttentionSum}, {kAttentionBranch}});
  add({"norm2",
       forward,
       &Run::norm2,
       {kInput, flow.attention_branch_all},
       {kMiddle, kNorm2, kMean2, kRstd2},
       norm});
  add({"norm2 again", recompute, &Run::norm2_again, {kMiddle}, {kNorm2, kMean2, kRstd2}, norm});
  add({"up", forward, &Run::up, {flow.up_input}, {kPreactivation}, up});
  add({"activation", forward, &Run::activation, {kPreactivation}, {kHidden}, activation});
  ends({"down", forward, &Run::down, {kHidden}, {}, down}, kMlpPartial,
       flow.gathers_sums ? BlockPart{"mlp branch", forward, &Run::mlp_branch, {kMlpSum}, {kMlpBranch}}
                         : BlockPart{"mlp branch", forward, &Run::mlp_branch, {kMlpSum, kMiddle}, {kOutput}});
  if (flow.gathers_sums) add({"add", forward, &Run::add_mlp, {kMlpBranchAll, kMiddle}, {kOutput}});

  if (flow.drops)
    add({"mlp dropout", backward, &Run::drop_mlp_gradient, {kOutputGradient}, {flow.mlp_branch}});
  add({"down parameters",
       backward,
       &Run::down_parameters,
       {kHidden, flow.mlp_branch_whole},
       {},
       down,
       &At::down});
  add({"down", backward, &Run::down_gradient, {flow.mlp_branch_whole}, {kHiddenGradient}, down});
  add({"activation",
       backward,
       &Run::activation_gradient,
       {kPreactivation, kHiddenGradient},
       {kPreactivationGradient},
       activation,
       flow.sums_up_bias ? &At::up : nullptr,
       BlockGradients::bias});
  add({"up parameters",
       backward,
       &Run::up_parameters,
       {flow.up_input, kPreactivationGradient},
       {},
       up,
       &At::up,
       flow.sums_up_bias ? BlockGradients::weight : BlockGradients::all});
  ends({"up", backward, &Run::up_gradient, {kPreactivationGradient}, {}, up}, kNorm2Partial,
       {"norm2 sum", backward, &Run::norm2_sum, {kNorm2Sum}, {kNorm2Gradient}});
  add({"norm2",
       backward,
       &Run::norm2_gradient,
       {kMiddle, kMean2, kRstd2, flow.norm2_gradient, kOutputGradient},
       {kMiddleGradient},
       norm,
       &At::norm2});
  if (flow.drops)
    add({"attention dropout",
         backward,
         &Run::drop_attention_gradient,
         {kMiddleGradient},
         {flow.attention_branch}});
  add({"projection parameters",
       backward,
       &Run::projection_parameters,
       {kAttention, flow.attention_branch_whole},
       {},
       projection,
       &At::projection});
  add({"projection",
       backward,
       &Run::projection_gradient,
       {flow.attention_branch_whole},
       {kAttentionGradient},
       projection});
  add({"attention",
       backward,
       &Run::attention_gradient,
       {kQkv, kAttention, kLogSumExp, kAttentionGradient},
       {kQkvGradient},
       attention});
  if (flow.shares) {
    all.back().writes.push_back(kPartsPartial);
    add({"heads", backward, &Run::heads_gradient, {kQkvGradient, kPartSum}, {kOwnQkvGradient}, heads});
  }
  add({"qkv parameters",
       backward,
       &Run::qkv_parameters,
       {flow.qkv_input, flow.own_qkv_gradient},
       {},
       qkv,
       &At::qkv});
  ends({"qkv", backward, &Run::qkv_gradient, {flow.own_qkv_gradient}, {}, qkv}, kNorm1Partial,
       {"norm1 sum", backward, &Run::norm1_sum, {kNorm1Sum}, {kNorm1Gradient}});
  add({"norm1",
       backward,
       &Run::norm1_gradient,
       {kInput, kMean1, kRstd1, flow.norm1_gradient, kMiddleGradient},
       {kInputGradient},
       norm,
       &At::norm1});
  if (flow.sums_up_bias)
    add({"up bias",
         weight_gradient,
         &Run::up_bias,
         {kPreactivationGradient},
         {},
         activation,
         &At::up,
         BlockGradients::bias});
  add({"norm2 parameters",
       weight_gradient,
       &Run::norm2_parameters,
       {kMiddle, kMean2, kRstd2, flow.norm2_gradient},
       {},
       norm,
       &At::norm2});
  add({"norm1 parameters",
       weight_gradient,
       &Run::norm1_parameters,
       {kInput, kMean1, kRstd1, flow.norm1_gradient},
       {},
       norm,
       &At::norm1});
  add_adapters(config, flow, all);
  if (flow.cached) std::erase_if(all, [](const BlockPart& part) { return part.pass != forward; });
  return flow.chunks > 1 ? in_chunks(flow, all) : all;
}

UnitGraph block_graph(const TransformerConfig& config, const BlockShapes& shapes, const Target& target) {
  UnitGraph graph;
  graph.output_bytes = shapes.stream_bytes;
  graph.values = block_values(config, shapes);
  const BlockFlow flow = flow_of(config, shapes);
  graph.forward_only = flow.cached;
  if (flow.chunks > 1) cut_into_chunks(flow, shapes, target, graph.values);
  const BlockShapes of_chunk = shapes.of_chunk(0);
  const BlockCosts all_rows(config, shapes, target), chunk_rows(config, of_chunk, target);
  for (const BlockPart& part : block_parts(config, flow)) {
    const bool whole = part.chunk == kAllChunks;
    const BlockCosts& costs = whole ? all_rows : chunk_rows;
    PartSpec& spec = graph.parts.emplace_back();
    spec.name = whole ? part.name : fmt::format("{}, chunk {}", part.name, part.chunk);
    spec.pass = part.pass;
    spec.reads = part.reads;
    spec.writes = part.writes;
    if (is_of_backward(part.pass)) spec.gradients = places_of(config, part);
    spec.workspace_bytes = costs.workspace_bytes(part);
    spec.flops = costs.flops(part);
  }
  return graph;
}

}  // namespace tessera::nn
