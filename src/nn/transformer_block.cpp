// A transformer block: its parameters, how several tensor ranks share them, and their initial values.
#include <fmt/format.h>
#include <xxhash.h>

#include <cmath>
#include <map>
#include <mutex>
#include <numeric>
#include <tuple>
#include <utility>
#include <vector>

#include "kernels/kernels.h"
#include "src/nn/block_graph.h"
#include "src/nn/support.h"
#include "src/nn/transformer.h"

namespace tessera::nn {
namespace {

class Block final : public Module {
 public:
  Block(const TransformerConfig& config, std::int64_t index) : config_(config), index_(index) {}

  std::vector<ParameterSpec> parameters() const override {
    std::vector<ParameterSpec> specs;
    const auto name = [&](std::string_view part) { return fmt::format("block.{}.{}", index_, part); };
    // Each tensor rank has some of the layer's outputs, by segments, or some of its inputs.
    const auto add_linear = [&](BlockLayer layer) {
      const bool cuts_outputs = splits_outputs(layer);
      const Cut cut = cuts_outputs ? Cut{.dim = 0, .segments = segments_of(config_, layer)} : Cut{.dim = 1};
      const std::string of_layer = name(name_of(config_, layer));
      const std::int64_t outputs = outputs_of(config_, layer);
      specs.push_back({.name = of_layer + ".weight",
                       .shape = {outputs, inputs_of(config_, layer)},
                       .dtype = config_.type,
                       .group = kDecay,
                       .cut = cut});
      if (config_.biases)
        specs.push_back({.name = of_layer + ".bias",
                         .shape = {outputs},
                         .dtype = config_.type,
                         .group = kNoDecay,
                         .cut = cuts_outputs ? cut : Cut{}});
    };
    const auto add_norm_of = [&](const char* part) {
      add_norm(config_.norm, name(part), config_.channels, config_.type, stream_gradient(config_), specs);
    };
    add_norm_of("norm1");
    add_linear(BlockLayer::qkv);
    add_linear(BlockLayer::projection);
    add_norm_of("norm2");
    add_linear(BlockLayer::up);
    add_linear(BlockLayer::down);
    for (const BlockLayer layer : kBlockLayers) add_adapters(layer, specs);
    return specs;
  }

  std::vector<Initial> initials() const override {
    const BlockIndices indices(config_);
    std::vector<Initial> initials(indices.count);  // zero, which the biases keep
    for (const std::size_t gain : {indices.norm1, indices.norm2})
      initials[gain] = {Initial::Kind::constant, 1.0};
    for (const std::size_t weight : {indices.qkv, indices.up})
      initials[weight] = {Initial::Kind::normal, config_.deviation};
    for (const std::size_t weight : {indices.projection, indices.down})
      initials[weight] = {Initial::Kind::normal, config_.residual_deviation};
    // As torch's kaiming_uniform_ with a = sqrt(5) draws A. B is zero.
    for (const BlockLayer layer : kBlockLayers)
      if (indices.has_adapters(layer))
        initials[indices.adapters(layer)] = {Initial::Kind::uniform,
                                             1.0 / std::sqrt(static_cast<double>(inputs_of(config_, layer)))};
    return initials;
  }

  ModuleNeeds needs(const BatchShape& shape, const Target& target) const override {
    check_batch(config_, shape);
    const BlockShapes shapes(config_, shape, target);
    ModuleNeeds needs;
    needs.activations = block_graph(config_, shapes, target);
    const auto tokens = static_cast<double>(shape.tokens());
    needs.masked_flops = tokens * static_cast<double>(shape.length - 1) / 2 * pair_flops(shapes);
    return needs;
  }

  std::string numerics(const BatchShape&, const Target& target) const override {
    const std::vector<float>& rotary = config_.rotary;
    const std::string rotated = rotary.empty() ? ""
                                               : fmt::format(", rotary frequencies {:016x}",
                                                             XXH3_64bits(rotary.data(), 4 * rotary.size()));
    return fmt::format(
        "{}, attention of {} heads, {} of keys and values{}, {}{}{}{}{}{}", words_of(config_.norm),
        config_.heads, config_.kv_heads, rotated, config_.mlp == MlpKind::gelu ? "gelu" : "swiglu",
        words_of_dropout("dropout", config_.dropout),
        words_of_dropout("attention dropout", config_.attention_dropout), words_of(config_.lora),
        config_.fp8_products ? ", products in fp8 by tiles of 128" : "",
        words_of_ranks(target, config_.sequence_parallel));
  }

  void run(int part, const ModuleContext& context) override {
    const BlockShapes shapes(
        config_, context.shape,
        {context.threads, context.device, context.tensor_ranks, context.exchange_chunks});
    const auto [run, chunk] = runs_of(shapes.split, shapes.chunks, shapes.cached.capacity > 0)[part];
    if (chunk == kAllChunks) return (BlockRun(config_, context, shapes).*run)();
    const BlockShapes of_chunk = shapes.of_chunk(chunk);
    (BlockRun(config_, context, of_chunk, chunk).*run)();
  }

 private:
  // Where ranks split the layer's outputs, each makes a part of the gradient of A; where they split its
  // inputs, of that of B.
  void add_adapters(BlockLayer layer, std::vector<ParameterSpec>& specs) const {
    const std::vector<LoraSegment> segments = lora_segments(config_, layer);
    if (segments.empty()) return;
    std::vector<std::int64_t> rows;
    for (const LoraSegment& segment : segments) rows.push_back(segment.rows);
    // An adapter on all rows is cut as they are.
    if (segments[0].target->segment < 0) rows = segments_of(config_, layer);
    const std::int64_t outputs = std::accumulate(rows.begin(), rows.end(), std::int64_t{0});
    const std::int64_t rank = config_.lora.rank;
    const bool cuts_outputs = splits_outputs(layer);
    const auto add = [&](const char* which, Shape shape, Cut cut) {
      const GradientOver gradient = cut.dim < 0 ? GradientOver::partial : GradientOver::copied;
      specs.push_back({.name = fmt::format("block.{}.{}.{}", index_, name_of(config_, layer), which),
                       .shape = std::move(shape),
                       .dtype = config_.type,
                       .group = kDecay,
                       .cut = std::move(cut),
                       .gradient = gradient});
    };
    add("lora_a", {std::ssize(segments) * rank, inputs_of(config_, layer)},
        cuts_outputs ? Cut{} : Cut{.dim = 1});
    add("lora_b", {outputs, rank}, cuts_outputs ? Cut{.dim = 0, .segments = rows} : Cut{});
  }

  struct RunOfPart {
    void (BlockRun::*run)() const;
    int chunk;
  };
  // By part; made once.
  const IdVector<RunOfPart>& runs_of(BlockSplit split, int chunks, bool cached) {
    const std::lock_guard lock(mutex_);
    IdVector<RunOfPart>& runs = runs_[{split, chunks, cached}];
    if (runs.empty())
      for (const BlockPart& part : block_parts(config_, BlockFlow(config_, split, chunks, cached)))
        runs.push_back({part.run, part.chunk});
    return runs;
  }

  TransformerConfig config_;
  std::int64_t index_;
  std::mutex mutex_;
  std::map<std::tuple<BlockSplit, int, bool>, IdVector<RunOfPart>> runs_;  // guarded by mutex_
};

}  // namespace

std::unique_ptr<Module> make_block(const TransformerConfig& config, std::int64_t index) {
  return std::make_unique<Block>(config, index);
}

}  // namespace tessera::nn
