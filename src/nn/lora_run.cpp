// The parts of a block that its adapters have, and what they add to the layers'.
#include "src/nn/block_run.h"
#include "src/nn/regions.h"

namespace tessera::nn {

void BlockRun::adapter(BlockLayer layer) const {
  kernels::matmul(compute_, adapters_.value(layer), value(flow_.input_of(layer)),
                  context_.parameters[indices_.adapters(layer)], nullptr,
                  value(BlockFlow::adapter_of(layer)));
}

void BlockRun::add_adapter(BlockLayer layer, void* output, DType type) const {
  const std::int64_t bytes = bytes_of(config_.type);
  std::int64_t column = 0;  // of the value
  for (const LoraShapes::Adapter& adapter : adapters_.of(layer)) {
    kernels::matmul(
        compute_, adapters_.output(layer, adapter, type),
        at(value(BlockFlow::adapter_of(layer)), column * bytes),
        at(context_.parameters[indices_.adapters(layer) + 1], adapter.row * adapters_.rank() * bytes),
        nullptr, at(output, adapter.column * bytes_of(type)));
    column += adapters_.rank();
  }
}

void BlockRun::adapter_gradient(BlockLayer layer) const {
  const std::int64_t bytes = bytes_of(config_.type);
  std::int64_t column = 0;
  for (const LoraShapes::Adapter& adapter : adapters_.of(layer)) {
    kernels::matmul(
        compute_, adapters_.value_gradient(layer, adapter),
        at(value(flow_.gradient_of(layer)), adapter.column * bytes),
        at(context_.parameters[indices_.adapters(layer) + 1], adapter.row * adapters_.rank() * bytes),
        nullptr, at(value(BlockFlow::adapter_gradient_of(layer)), column * bytes));
    column += adapters_.rank();
  }
}

void BlockRun::add_adapter_gradient(BlockLayer layer, void* gradient, DType type) const {
  if (adapters_.of(layer).empty()) return;
  kernels::matmul(compute_, adapters_.input_gradient(layer, type),
                  value(BlockFlow::adapter_gradient_of(layer)), context_.parameters[indices_.adapters(layer)],
                  nullptr, gradient);
}

void BlockRun::adapter_parameters(BlockLayer layer) const {
  const std::int64_t bytes = bytes_of(config_.type);
  const std::size_t a = indices_.adapters(layer), b = a + 1;
  if (context_.gradients[a] != nullptr)
    kernels::matmul(compute_, adapters_.a_gradient(layer, context_.betas[a]),
                    value(BlockFlow::adapter_gradient_of(layer)), value(flow_.input_of(layer)), nullptr,
                    context_.gradients[a]);
  if (context_.gradients[b] == nullptr) return;
  std::int64_t column = 0;
  for (const LoraShapes::Adapter& adapter : adapters_.of(layer)) {
    kernels::matmul(compute_, adapters_.b_gradient(layer, adapter, context_.betas[b]),
                    at(value(flow_.gradient_of(layer)), adapter.column * bytes),
                    at(value(BlockFlow::adapter_of(layer)), column * bytes), nullptr,
                    at(context_.gradients[b], adapter.row * adapters_.rank() * bytes));
    column += adapters_.rank();
  }
}

}  // namespace tessera::nn
