#include "tests/emulated_cuda/cudnn/engines.h"

#include <algorithm>

#include "tests/emulated_cuda/cudnn/interpreter.h"

namespace tessera::emulated_cudnn {
namespace {

constexpr std::int64_t kVector = 8;          // elements of a matrix in memory that are read at a time
constexpr std::int64_t kMostChannels = 128;  // of a head
constexpr std::int64_t kTile = 64, kCounters = 128;
constexpr std::int64_t kLargeBytes = std::int64_t{1} << 40;

// Channels lie side by side, in whole vectors, and so do all rows.
void check_matrix(const Tensor& tensor) {
  const std::string name = "tensor " + std::to_string(tensor.uid);
  if (bytes_of(tensor.type) != 2)
    throw Refusal{CUDNN_STATUS_NOT_SUPPORTED_DATA_TYPE, name + ": a matmul's operand is not of 16 bits"};
  const std::size_t rank = tensor.dims.size();
  std::size_t channels = rank - 1;
  if (tensor.strides[channels] != 1) --channels;
  for (std::size_t d = 0; d < rank; ++d)
    if (tensor.strides[d] % kVector != 0 && d != channels)
      throw Refusal{CUDNN_STATUS_NOT_SUPPORTED_LAYOUT,
                    name + ": a stride is " + std::to_string(tensor.strides[d]) + " elements"};
  const std::int64_t count = tensor.dims[channels];
  if (tensor.strides[channels] != 1 || count % kVector != 0 || count > kMostChannels)
    throw Refusal{CUDNN_STATUS_NOT_SUPPORTED_SHAPE, name + ": " + std::to_string(count) + " channels"};
}

std::int64_t padded_bytes(const Tensor& tensor) {
  const auto padded = [](std::int64_t extent) { return (extent + kTile - 1) / kTile * kTile; };
  const std::size_t rank = tensor.dims.size();
  const std::int64_t rows = tensor.dims[rank - 2], columns = tensor.dims[rank - 1];
  return tensor.numel() / (rows * columns) * padded(rows) * padded(columns) * bytes_of(tensor.type);
}

}  // namespace

std::vector<Engine> engines_of(const Graph& graph) {
  if (!is_known(graph))
    throw Refusal{CUDNN_STATUS_NOT_SUPPORTED_GRAPH_PATTERN, "an operation that the stand-in does not know"};
  for (const Operation& operation : graph.operations)
    if (operation.kind == OperationKind::matmul)
      for (const Tensor& input : operation.inputs)
        if (input.in_memory()) check_matrix(input);
  const std::int64_t bytes = workspace_bytes(graph);
  return {{kNondeterministicEngine, false, bytes / 2},
          {kLargeEngine, true, kLargeBytes},
          {kRightEngine, true, bytes}};
}

std::int64_t workspace_bytes(const Graph& graph) {
  std::int64_t made = 0, reshaped = 0;
  for (const Operation& operation : graph.operations) {
    const Tensor& output = operation.output;
    if (!output.is_virtual || bytes_of(output.type) != 2) continue;
    if (operation.kind == OperationKind::matmul) made += output.numel() * bytes_of(output.type);
    if (operation.kind == OperationKind::reshape) reshaped = std::max(reshaped, padded_bytes(output));
  }
  return made + reshaped > 0 ? made + reshaped + kCounters : 0;
}

}  // namespace tessera::emulated_cudnn
