// The last layer of an MLP, and the loss.
#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "kernels/cross_entropy_chunks.h"
#include "kernels/kernels.h"
#include "src/nn/mlp_layer.h"
#include "src/nn/regions.h"
#include "src/nn/softmax_loss.h"
#include "src/nn/support.h"
#include "tessera/error.h"

namespace tessera::nn {
namespace {

enum ClassifierValue : ValueId {
  kCast,    // [rows, in]: the batch in the layer's type
  kLosses,  // [rows] fp32
  kValuesAlone,
  // Where rows are split, these two are of this rank's rows.
  kLossesWhole = kValuesAlone,  // [rows] fp32: of all ranks' rows
  kOwnTotal,                    // LossTotal of this rank's rows
  // Where inputs are split. Every rank makes the losses of all rows.
  kPartial = kValuesAlone,  // [rows, classes] fp32: this rank's part of the logits
  kSum,                     // [this rank's rows, classes] fp32: logits
  kSumWhole,                // [rows, classes] fp32: of all ranks' rows
  kLogits,                  // the same, with rows logits_stride() apart; then their gradients
  kStatistics               // [rows]
};

// What its parts do.
enum class Work : std::uint8_t {
  evaluate,  // losses
  train,     // losses and gradients
  total,     // of all ranks' losses
  logits,    // this rank's part
  losses,    // of the logits
  gradients  // losses of the logits, and what the layer's backward makes of them
};
struct Part {
  Work work;
  Pass pass;
};

class ClassifierLayer final : public Module {
 public:
  explicit ClassifierLayer(MlpLayer layer)
      : layer_(std::move(layer)), alone_(parts(LayerSplit::none)), shared_(parts(layer_.split())) {}

  std::vector<ParameterSpec> parameters() const override { return {weight_of(layer_)}; }
  std::vector<Initial> initials() const override { return {weight_initial(layer_)}; }

  // In training all work is left to backward.
  ModuleNeeds needs(const BatchShape& shape, const Target& target) const override {
    check_one_chunk("mlp", target);
    const MlpShapes shapes(layer_, shape, target.tensor);
    ModuleNeeds needs;
    needs.activations.values = values(shapes, target);
    for (const Part& part : target.tensor > 1 ? shared_ : alone_)
      needs.activations.parts.push_back(spec_of(part, shapes, target));
    return needs;
  }

  std::string numerics(const BatchShape& shape, const Target& target) const override {
    // Where inputs are split, the logits of all rows are there at once.
    const bool at_once = target.tensor > 1 && layer_.split() == LayerSplit::inputs;
    const std::int64_t own_rows = std::max<std::int64_t>(1, shape.sequences / target.tensor);
    const std::int64_t rows =
        at_once ? shape.sequences : kernels::rows_per_chunk(fused(own_rows), target.device);
    return fmt::format("logits and cross-entropy by {} rows{}", rows, words_of_ranks(target));
  }

  void run(int part, const ModuleContext& context) override {
    if (context.logits != nullptr && context.tensor_ranks > 1)
      throw UnsupportedError(
          fmt::format("mlp: the logits of a row are wanted on {} tensor ranks; one rank alone makes them",
                      context.tensor_ranks));
    const MlpShapes shapes(layer_, context.shape, context.tensor_ranks);
    const kernels::ComputeContext compute = compute_context(context);
    ModuleContext own = context;  // of the rows that the fused op works on
    if (shapes.split == LayerSplit::rows && context.total != nullptr)
      own.total = static_cast<LossTotal*>(context.value(kOwnTotal));
    switch ((context.tensor_ranks > 1 ? shared_ : alone_)[static_cast<std::size_t>(part)].work) {
      case Work::evaluate:
        if (context.kind == StepKind::evaluate) softmax_loss_evaluate(own, compute, loss(context, shapes));
        return;
      case Work::train:
        return softmax_loss_train(own, compute, loss(context, shapes),
                                  context.value(layer_.first() ? ValueId{kCast} : kInputGradient));
      case Work::total:
        if (context.total != nullptr)
          kernels::total_loss(compute, shapes.rows, targets(context, 0),
                              static_cast<const float*>(context.value(kLossesWhole)), context.total);
        return;
      case Work::logits:
        return kernels::linear_forward_partial(
            compute, {.rows = shapes.rows, .in = shapes.in, .out = shapes.out, .type = layer_.type},
            context.value(kInput), context.parameters[0], static_cast<float*>(context.value(kPartial)));
      case Work::losses:
        return losses(context, shapes);
      case Work::gradients:
        return gradients(context, shapes);
    }
  }

 private:
  static std::vector<Part> parts(LayerSplit split) {
    switch (split) {
      case LayerSplit::rows:
        return {{Work::evaluate, Pass::forward},
                {Work::total, Pass::forward},
                {Work::train, Pass::backward},
                {Work::total, Pass::backward}};
      case LayerSplit::inputs:
        return {{Work::logits, Pass::forward},
                {Work::losses, Pass::forward},
                {Work::logits, Pass::backward},
                {Work::gradients, Pass::backward}};
      default:
        return {{Work::evaluate, Pass::forward}, {Work::train, Pass::backward}};
    }
  }

  // The shape of the op that makes logits and losses at once.
  kernels::CrossEntropyShape fused(std::int64_t rows) const {
    return {.rows = rows, .channels = layer_.in, .vocabulary = layer_.out, .type = layer_.type};
  }
  // The shape of the ops on all logits, where all are there at once.
  kernels::SoftmaxShape softmax(const MlpShapes& shapes) const {
    return {.rows = shapes.rows, .columns = shapes.out, .vocabulary = shapes.out, .type = layer_.type};
  }

  const std::int32_t* targets(const ModuleContext& context, std::int64_t first_row) const {
    return at<std::int32_t>(context.batch, inputs_bytes(context.shape.sequences, layer_.inputs)) + first_row;
  }

  SoftmaxLoss loss(const ModuleContext& context, const MlpShapes& shapes) const {
    const std::int64_t first_row =
        shapes.split == LayerSplit::rows ? shapes.own_rows * context.tensor_rank : 0;
    return {.shape = fused(shapes.input_rows()),
            .input = layer_input(context, layer_, shapes, layer_.source(), kCast),
            .targets = targets(context, first_row),
            .weight = 0,
            .losses = static_cast<float*>(context.value(kLosses))};
  }

  // Copies the logits, because gradients take their place.
  float* logits(const ModuleContext& context, const MlpShapes& shapes) const {
    const kernels::ComputeContext compute = compute_context(context);
    const kernels::SoftmaxShape shape = softmax(shapes);
    auto* logits = static_cast<float*>(context.value(kLogits));
    kernels::copy_rows(compute,
                       {.rows = shape.rows,
                        .row_bytes = 4 * shape.columns,
                        .input_stride = 4 * shape.columns,
                        .output_stride = 4 * kernels::logits_stride(shape, context.device)},
                       context.value(kSumWhole), logits);
    kernels::softmax_statistics(compute, shape, logits, targets(context, 0),
                                static_cast<kernels::SoftmaxStatistics*>(context.value(kStatistics)));
    return logits;
  }

  void losses(const ModuleContext& context, const MlpShapes& shapes) const {
    if (context.total == nullptr) return;
    const kernels::ComputeContext compute = compute_context(context);
    auto* losses = static_cast<float*>(context.value(kLosses));
    logits(context, shapes);
    kernels::softmax_losses(compute, softmax(shapes),
                            static_cast<const kernels::SoftmaxStatistics*>(context.value(kStatistics)),
                            targets(context, 0), losses);
    kernels::total_loss(compute, shapes.rows, targets(context, 0), losses, context.total);
  }

  void gradients(const ModuleContext& context, const MlpShapes& shapes) const {
    const kernels::ComputeContext compute = compute_context(context);
    float* const logits = this->logits(context, shapes);
    auto* losses = static_cast<float*>(context.value(kLosses));
    kernels::softmax_gradients(
        compute, softmax(shapes),
        {.statistics = static_cast<const kernels::SoftmaxStatistics*>(context.value(kStatistics)),
         .targets = targets(context, 0),
         .scale = context.loss_scale,
         .scale_at = context.loss_scale_at,
         .logits = logits,
         .losses = losses});
    kernels::total_loss(compute, shapes.rows, targets(context, 0), losses, context.total);
    linear_parameter_gradients(context, compute,
                               {.shape = layer_of_gradients(shapes, context.device),
                                .input = context.value(kInput),
                                .output_gradient = logits,
                                .weight = 0,
                                .bias = false});
    kernels::linear_backward_input(compute, layer_of_gradients(shapes, context.device), logits,
                                   context.parameters[0], 0.0f, context.value(kInputGradient));
  }

  kernels::LinearShape layer_of_gradients(const MlpShapes& shapes, DeviceType device) const {
    return kernels::gradients_layer(softmax(shapes), shapes.in, device);
  }

  // The fused op always writes the input's gradient; where this layer is the only one, nobody reads it.
  IdVector<ValueSpec> values(const MlpShapes& shapes, const Target& target) const {
    constexpr std::int64_t kFloat = sizeof(float);
    const int ranks = target.tensor;
    const bool rows = shapes.split == LayerSplit::rows;
    IdVector<ValueSpec> values = {
        {.name = "cast",
         .bytes = layer_.first() ? shapes.input_rows() * layer_.in * bytes_of(layer_.type) : 0,
         .held = rows ? Held::split : Held::copied},
        {.name = "losses", .bytes = shapes.input_rows() * kFloat, .held = rows ? Held::split : Held::copied}};
    if (rows) {
      values.push_back({.name = "losses.whole", .bytes = shapes.rows * kFloat, .exchanged = kLosses});
      values.push_back(
          {.name = "losses.own", .bytes = static_cast<std::int64_t>(sizeof(LossTotal)), .held = Held::split});
    }
    if (shapes.split != LayerSplit::inputs) return values;
    const std::int64_t bytes = shapes.own_rows * layer_.out * kFloat;
    values.push_back({.name = "logits.partial", .bytes = bytes * ranks, .held = Held::partial});
    values.push_back({.name = "logits.sum", .bytes = bytes, .held = Held::split, .exchanged = kPartial});
    values.push_back({.name = "logits.sum.whole", .bytes = bytes * ranks, .exchanged = kSum});
    values.push_back({.name = "logits", .bytes = kernels::logits_bytes(softmax(shapes), target.device)});
    values.push_back({.name = "statistics",
                      .bytes = shapes.rows * static_cast<std::int64_t>(sizeof(kernels::SoftmaxStatistics))});
    return values;
  }

  PartSpec spec_of(const Part& part, const MlpShapes& shapes, const Target& target) const {
    const kernels::LinearShape product = {
        .rows = shapes.rows, .in = shapes.in, .out = shapes.out, .type = layer_.type};
    const bool alone = target.tensor == 1;
    PartSpec spec = {
        .name = "loss", .pass = part.pass, .evaluation_only = !alone && part.pass == Pass::forward};
    if (part.pass == Pass::backward && part.work != Work::train && part.work != Work::gradients)
      spec.gradients = kNoGradients;
    switch (part.work) {
      case Work::evaluate:
      case Work::train:
        spec.reads = {kBatch};
        if (!layer_.first()) spec.reads.push_back(kInput);
        spec.writes = {kCast, kLosses};
        if (!alone) spec.writes.push_back(kOwnTotal);
        if (part.work == Work::train) spec.writes.push_back(kInputGradient);
        spec.workspace_bytes = softmax_loss_workspace_bytes(fused(shapes.input_rows()), target);
        spec.flops = (part.work == Work::train ? 2 : 1) * shapes.flops;
        break;
      case Work::total:
        spec.name = "total";
        spec.reads = {kLossesWhole, kBatch};
        break;
      case Work::logits:
        spec.name = "logits";
        spec.reads = {kInput};
        spec.writes = {kPartial};
        spec.workspace_bytes = kernels::linear_partial_workspace_bytes(product, target);
        spec.flops = shapes.flops;
        break;
      case Work::losses:
        spec.reads = {kSumWhole, kBatch};
        spec.writes = {kLogits, kStatistics, kLosses};
        break;
      case Work::gradients:
        spec.reads = {kSumWhole, kInput, kBatch};
        spec.writes = {kLogits, kStatistics, kLosses, kInputGradient};
        spec.workspace_bytes =
            kernels::linear_workspace_bytes(layer_of_gradients(shapes, target.device), target);
        spec.flops = 2 * shapes.flops;
        break;
    }
    return spec;
  }

  MlpLayer layer_;
  std::vector<Part> alone_, shared_;  // on one rank and on several
};

}  // namespace

std::unique_ptr<Module> make_classifier(MlpLayer layer) {
  return std::make_unique<ClassifierLayer>(std::move(layer));
}

}  // namespace tessera::nn
