// A graph of operations as descriptors describe it, as plain data. Reading one checks what cuDNN checks.
#pragma once

#include <cudnn_graph.h>

#include <cstdint>
#include <map>
#include <vector>

#include "tests/emulated_cuda/cudnn/descriptor.h"

namespace tessera::emulated_cudnn {

using Extents = std::vector<std::int64_t>;

struct Tensor {
  std::int64_t uid = 0;
  cudnnDataType_t type = CUDNN_DATA_FLOAT;
  Extents dims = {}, strides = {};  // in elements
  std::int64_t alignment = 0;       // of its address, in bytes
  bool is_virtual = false;          // made and read within the graph only
  bool by_value = false;            // one element in the host's memory

  bool in_memory() const { return !is_virtual && !by_value; }
  std::int64_t numel() const;
  std::int64_t extent() const;  // of the elements from the first to the last
  bool operator==(const Tensor&) const = default;
};

std::int64_t bytes_of(cudnnDataType_t type);

enum class OperationKind { matmul, pointwise, reduction, reshape };

struct Operation {
  OperationKind kind = OperationKind::pointwise;
  cudnnPointwiseMode_t mode = CUDNN_POINTWISE_IDENTITY;       // of a pointwise one
  std::int64_t axis = -1;                                     // of GEN_INDEX
  double alpha1 = 1, alpha2 = 1;                              // factors of a pointwise one's x and b
  cudnnReduceTensorOp_t reduction = CUDNN_REDUCE_TENSOR_ADD;  // of a reduction
  std::vector<Tensor> inputs = {};  // x, b and t of a pointwise one, a and b of a matmul, else x
  Tensor output = {};
};

struct Graph {
  std::vector<Operation> operations;       // each behind those that make what it reads
  std::map<std::int64_t, Tensor> tensors;  // all, by uid
};

// Of finalized descriptors. Throw Refusal.
Tensor tensor_of(const Descriptor& descriptor);
Operation operation_of(const Descriptor& descriptor);
Graph graph_of(const Descriptor& descriptor);

}  // namespace tessera::emulated_cudnn
