#include <utility>
#include <vector>

#include "kernels/kernels.h"
#include "src/nn/regions.h"
#include "src/nn/support.h"
#include "src/nn/transformer.h"

namespace tessera::nn {
namespace {

enum Index : std::size_t { kToken, kPosition };
enum EmbedValue : ValueId {
  kDroppedGradient,  // [stream rows, channels], behind dropout, where there is any
  // These are there on several tensor ranks, each of which has some rows of the table.
  kRows,           // [tokens, channels]: the rows of its tokens, zeros for others
  kRowsSum,        // [own rows, channels] fp32
  kGradientWhole,  // [tokens, channels]: the gradient of all ranks' rows
  // This one where each of them has all rows of the residual stream.
  kRowsAll,  // [tokens, channels] fp32: the sum of all ranks' rows
};

class Embed final : public Module {
 public:
  explicit Embed(const TransformerConfig& config) : config_(config) {}

  std::vector<ParameterSpec> parameters() const override {
    std::vector<ParameterSpec> specs = {table("embed.token", config_.token_rows)};
    specs[0].cut = {.dim = 0, .padded = true};
    if (config_.learned_positions) specs.push_back(table("embed.position", config_.context));
    return specs;
  }

  bool parameters_read_in_forward_only() const override { return true; }

  std::vector<Initial> initials() const override {
    std::vector<Initial> initials = {initial_of_tokens(config_)};
    if (config_.learned_positions) initials.push_back({Initial::Kind::normal, config_.deviation});
    return initials;
  }

  ModuleNeeds needs(const BatchShape& shape, const Target& target) const override {
    check_batch(config_, shape);
    const bool drops = config_.dropout > 0, split = target.tensor > 1;
    const std::int64_t rows = stream_rows_of(config_, shape, target);
    ModuleNeeds needs;
    UnitGraph& graph = needs.activations;
    graph.output_bytes = rows * config_.channels * bytes_of(config_.type);
    graph.values = {{.name = "dropped.gradient",
                     .bytes = drops ? graph.output_bytes : 0,
                     .held = config_.sequence_parallel ? Held::split : Held::copied}};
    const auto add = [&](Row row, std::vector<ValueId> reads, std::vector<ValueId> writes) {
      const bool is_first = row == Row::look_up || row == Row::embed || row == Row::positions;
      graph.parts.push_back({.name = kNames[static_cast<int>(row)],
                             .pass = is_first ? Pass::forward : Pass::backward,
                             .reads = std::move(reads),
                             .writes = std::move(writes)});
    };
    if (split) add_exchanged(shape, target, graph);
    for (const Row row : rows_of(split)) {
      switch (row) {
        case Row::embed:
          add(row, {kBatch}, {kOutput});
          break;
        case Row::look_up:
          add(row, {kBatch}, {kRows});
          break;
        case Row::positions:
          add(row, {rows_sum()}, {kOutput});
          break;
        case Row::dropout:
          add(row, {kOutputGradient}, {kDroppedGradient});
          graph.parts.back().gradients = kNoGradients;
          break;
        case Row::gradients:
          add(row, {kBatch, gradient_of_all(target.tensor)}, {});
          graph.parts.back().workspace_bytes =
              kernels::embedding_backward_workspace_bytes(kernel_shape(shape, target.tensor, 0), target);
      }
    }
    return needs;
  }

  std::string numerics(const BatchShape&, const Target& target) const override {
    return "embedding" + words_of_dropout("dropout", config_.dropout) +
           words_of_ranks(target, config_.sequence_parallel);
  }

  void run(int part, const ModuleContext& context) override {
    const kernels::ComputeContext compute = compute_context(context);
    const bool split = context.tensor_ranks > 1;
    switch (rows_of(split)[static_cast<std::size_t>(part)]) {
      case Row::embed:
        return embed(context, compute);
      case Row::look_up:
        return look_up(context, compute);
      case Row::positions:
        return positions(context, compute);
      case Row::dropout:
        return drop_stream(config_, context, compute, 0, context.value(kOutputGradient),
                           context.value(kDroppedGradient));
      case Row::gradients:
        return gradients(context, compute, context.value(gradient_of_all(context.tensor_ranks)));
    }
  }

 private:
  // What its parts do. One rank embeds. Each of several looks up its own rows, and adds positions to its part
  // of their sum.
  enum class Row : std::uint8_t { embed, look_up, positions, dropout, gradients };
  static constexpr const char* kNames[] = {"embedding", "look up", "positions", "dropout", "embedding"};

  std::vector<Row> rows_of(bool split) const {
    std::vector<Row> rows = {Row::embed};
    if (split) rows = {Row::look_up, Row::positions};
    if (config_.dropout > 0) rows.push_back(Row::dropout);
    rows.push_back(Row::gradients);
    return rows;
  }

  // What positions are added to.
  ValueId rows_sum() const { return config_.sequence_parallel ? kRowsSum : kRowsAll; }
  // The gradient of all tokens' rows.
  ValueId gradient_of_all(int ranks) const {
    return ranks > 1 && config_.sequence_parallel ? ValueId{kGradientWhole} : own_gradient();
  }
  // The gradient of the rows that this rank has of the output.
  ValueId own_gradient() const { return config_.dropout > 0 ? ValueId{kDroppedGradient} : kOutputGradient; }

  void add_exchanged(const BatchShape& shape, const Target& target, UnitGraph& graph) const {
    const std::int64_t numel = shape.tokens() * config_.channels;
    graph.values.push_back({.name = "rows",
                            .bytes = numel * bytes_of(config_.type),
                            .held = Held::partial,
                            .type = config_.type});
    graph.values.push_back({.name = "rows.sum",
                            .bytes = numel / target.tensor * bytes_of(DType::fp32),
                            .held = Held::split,
                            .exchanged = kRows});
    if (!config_.sequence_parallel) {
      graph.values.push_back({.name = "gradient.whole", .bytes = 0});
      graph.values.push_back({.name = "rows.all", .bytes = numel * 4, .exchanged = kRowsSum});
      return;
    }
    graph.values.push_back(
        {.name = "gradient.whole", .bytes = numel * bytes_of(config_.type), .exchanged = own_gradient()});
    for (const ValueId made : {kRowsSum, kGradientWhole}) exchange_in_chunks(graph.values, made, target);
  }

  ParameterSpec table(const char* name, std::int64_t rows) const {
    return {.name = name, .shape = {rows, config_.channels}, .dtype = config_.type, .group = kDecay};
  }

  // The rows of the position table from that of the batch's first token on.
  const void* position_rows(const ModuleContext& context) const {
    return at(context.parameters[kPosition], context.position * config_.channels * bytes_of(config_.type));
  }

  // All but this rank's rows are zeros.
  void look_up(const ModuleContext& context, const kernels::ComputeContext& compute) const {
    kernels::EmbeddingShape shape = kernel_shape(context.shape, context.tensor_ranks, context.tensor_rank);
    shape.positions = 0;
    kernels::embedding_forward(compute, shape, static_cast<const std::int32_t*>(context.batch),
                               context.parameters[kToken], nullptr, context.value(kRows));
  }

  void positions(const ModuleContext& context, const kernels::ComputeContext& compute) const {
    const auto* sum = static_cast<const float*>(context.value(rows_sum()));
    void* output = context.value(kOutput);
    for (int chunk = 0; chunk < context.exchange_chunks; ++chunk) {
      const OwnRows rows =
          config_.sequence_parallel ? own_rows(context, chunk) : OwnRows{.count = context.shape.tokens()};
      const std::int64_t before = chunk * rows.count * config_.channels;
      void* rows_output = at(output, before * bytes_of(config_.type));
      if (config_.learned_positions)
        kernels::add_positions(compute,
                               {.first_row = rows.first,
                                .rows = rows.count,
                                .sequence = context.shape.length,
                                .channels = config_.channels,
                                .type = config_.type},
                               sum + before, position_rows(context), rows_output);
      else
        kernels::finish_sum(compute, {.rows = rows.count, .channels = config_.channels, .type = config_.type},
                            sum + before, nullptr, rows_output);
    }
    drop_stream(config_, context, compute, 0, output, output);
  }

  void embed(const ModuleContext& context, const kernels::ComputeContext& compute) const {
    void* output = context.value(kOutput);
    kernels::EmbeddingShape shape = kernel_shape(context.shape, 1, 0);
    if (config_.learned_positions) shape.positions -= context.position;
    kernels::embedding_forward(compute, shape, static_cast<const std::int32_t*>(context.batch),
                               context.parameters[kToken],
                               config_.learned_positions ? position_rows(context) : nullptr, output);
    drop_stream(config_, context, compute, 0, output, output);
  }

  // Goes through all tokens, for this rank's rows of the table.
  void gradients(const ModuleContext& context, const kernels::ComputeContext& compute,
                 const void* output_gradient) const {
    kernels::EmbeddingBackward arguments = {.tokens = static_cast<const std::int32_t*>(context.batch),
                                            .output_gradient = output_gradient,
                                            .token_gradient = context.gradients[kToken],
                                            .token_beta = context.betas[kToken]};
    if (config_.learned_positions) {
      arguments.position_gradient = context.gradients[kPosition];
      arguments.position_beta = context.betas[kPosition];
    }
    kernels::embedding_backward(
        compute, kernel_shape(context.shape, context.tensor_ranks, context.tensor_rank), arguments);
  }

  kernels::EmbeddingShape kernel_shape(const BatchShape& shape, int ranks, int rank) const {
    const std::int64_t of_rank = padded_part(config_.token_rows, ranks);
    return {.batch = shape.sequences,
            .sequence = shape.length,
            .channels = config_.channels,
            .vocabulary = config_.vocabulary,
            .positions = config_.learned_positions ? config_.context : 0,
            .type = config_.type,
            .first_token = rank * of_rank,
            .table_rows = of_rank};
  }

  TransformerConfig config_;
};

}  // namespace

std::unique_ptr<Module> make_embed(const TransformerConfig& config) {
  return std::make_unique<Embed>(config);
}

}  // namespace tessera::nn
