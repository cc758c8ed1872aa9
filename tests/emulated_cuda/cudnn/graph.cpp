#include "tests/emulated_cuda/cudnn/graph.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <set>

namespace tessera::emulated_cudnn {
namespace {

[[noreturn]] void refuse(cudnnStatus_t status, const std::string& why) { throw Refusal{status, why}; }

std::string name_of(const Tensor& tensor) { return "tensor " + std::to_string(tensor.uid); }

std::string words_of(const Extents& extents) {
  std::string words = "[";
  for (const std::int64_t extent : extents) words += (words.size() > 1 ? ", " : "") + std::to_string(extent);
  return words + "]";
}

void check_same_rank(const Operation& operation) {
  for (const Tensor& input : operation.inputs)
    if (input.dims.size() != operation.output.dims.size())
      refuse(CUDNN_STATUS_BAD_PARAM_SHAPE_MISMATCH,
             name_of(input) + " and " + name_of(operation.output) + " have different numbers of dims");
}

[[noreturn]] void refuse_shapes(const Operation& operation, const char* what) {
  std::string why = std::string(what) + " of";
  for (const Tensor& input : operation.inputs) why += " " + words_of(input.dims);
  refuse(CUDNN_STATUS_BAD_PARAM_SHAPE_MISMATCH, why + " to " + words_of(operation.output.dims));
}

// Inputs have the output's dims, or 1 in their place.
void check_pointwise(const Operation& operation) {
  for (const Tensor& input : operation.inputs)
    for (std::size_t d = 0; d < input.dims.size(); ++d)
      if (input.dims[d] != operation.output.dims[d] && input.dims[d] != 1)
        refuse_shapes(operation, "pointwise operation");
}

// [.., m, k] by [.., k, n]. Where b has fewer of a dim before these, consecutive ones of a share one of b.
void check_matmul(const Operation& operation) {
  const Extents &a = operation.inputs[0].dims, &b = operation.inputs[1].dims, &c = operation.output.dims;
  const std::size_t rank = c.size();
  bool fits =
      rank >= 2 && a[rank - 2] == c[rank - 2] && a[rank - 1] == b[rank - 2] && b[rank - 1] == c[rank - 1];
  for (std::size_t d = 0; fits && d + 2 < rank; ++d) fits = a[d] == c[d] && c[d] % b[d] == 0;
  if (!fits) refuse_shapes(operation, "matmul");
}

// Each dim of the output divides the input's: consecutive elements are reduced to one.
void check_reduction(const Operation& operation) {
  for (std::size_t d = 0; d < operation.output.dims.size(); ++d)
    if (operation.inputs[0].dims[d] % operation.output.dims[d] != 0) refuse_shapes(operation, "reduction");
}

// The same memory by other dims and strides.
void check_reshape(const Operation& operation) {
  const Tensor &x = operation.inputs[0], &y = operation.output;
  if (x.numel() != y.numel() || x.extent() != y.extent()) refuse_shapes(operation, "reshape");
}

Operation read_pointwise(const Descriptor& d) {
  const Descriptor& what = d.descriptor(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR);
  Operation operation = {.kind = OperationKind::pointwise,
                         .mode = what.one<cudnnPointwiseMode_t>(CUDNN_ATTR_POINTWISE_MODE),
                         .axis = what.one_or<std::int64_t>(CUDNN_ATTR_POINTWISE_AXIS, -1),
                         .alpha1 = d.one_or<float>(CUDNN_ATTR_OPERATION_POINTWISE_ALPHA1, 1),
                         .alpha2 = d.one_or<float>(CUDNN_ATTR_OPERATION_POINTWISE_ALPHA2, 1)};
  for (const Attribute name : {CUDNN_ATTR_OPERATION_POINTWISE_XDESC, CUDNN_ATTR_OPERATION_POINTWISE_BDESC,
                               CUDNN_ATTR_OPERATION_POINTWISE_TDESC})
    if (d.has(name)) operation.inputs.push_back(tensor_of(d.descriptor(name)));
  operation.output = tensor_of(d.descriptor(CUDNN_ATTR_OPERATION_POINTWISE_YDESC));
  if (operation.mode == CUDNN_POINTWISE_GEN_INDEX &&
      (operation.axis < 0 || operation.axis >= static_cast<std::int64_t>(operation.output.dims.size())))
    refuse(CUDNN_STATUS_BAD_PARAM_OUT_OF_BOUND, "indices along axis " + std::to_string(operation.axis));
  return operation;
}

}  // namespace

std::int64_t Tensor::numel() const {
  return std::accumulate(dims.begin(), dims.end(), std::int64_t{1}, std::multiplies<>());
}

std::int64_t Tensor::extent() const {
  std::int64_t last = 0;
  for (std::size_t d = 0; d < dims.size(); ++d) last += (dims[d] - 1) * strides[d];
  return last + 1;
}

std::int64_t bytes_of(cudnnDataType_t type) {
  switch (type) {
    case CUDNN_DATA_FLOAT:
    case CUDNN_DATA_INT32:
      return 4;
    case CUDNN_DATA_BFLOAT16:
    case CUDNN_DATA_HALF:
      return 2;
    case CUDNN_DATA_BOOLEAN:
      return 1;
    default:
      refuse(CUDNN_STATUS_NOT_SUPPORTED_DATA_TYPE, "the stand-in knows no data type " + std::to_string(type));
  }
}

Tensor tensor_of(const Descriptor& d) {
  if (d.type() != CUDNN_BACKEND_TENSOR_DESCRIPTOR)
    refuse(CUDNN_STATUS_BAD_PARAM_DESCRIPTOR_TYPE, "an operation's operand is no tensor");
  Tensor tensor = {.uid = d.one<std::int64_t>(CUDNN_ATTR_TENSOR_UNIQUE_ID),
                   .type = d.one<cudnnDataType_t>(CUDNN_ATTR_TENSOR_DATA_TYPE),
                   .dims = d.all<std::int64_t>(CUDNN_ATTR_TENSOR_DIMENSIONS),
                   .strides = d.all<std::int64_t>(CUDNN_ATTR_TENSOR_STRIDES),
                   .alignment = d.one<std::int64_t>(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT),
                   .is_virtual = d.one_or(CUDNN_ATTR_TENSOR_IS_VIRTUAL, false),
                   .by_value = d.one_or(CUDNN_ATTR_TENSOR_IS_BY_VALUE, false)};
  if (tensor.dims.size() != tensor.strides.size())
    refuse(CUDNN_STATUS_BAD_PARAM, name_of(tensor) + " has dims " + words_of(tensor.dims) + " and strides " +
                                       words_of(tensor.strides));
  for (std::size_t i = 0; i < tensor.dims.size(); ++i)
    if (tensor.dims[i] < 1 || tensor.strides[i] < 1)
      refuse(CUDNN_STATUS_BAD_PARAM, name_of(tensor) + " has dims " + words_of(tensor.dims) +
                                         " and strides " + words_of(tensor.strides));
  if (tensor.alignment < bytes_of(tensor.type) || (tensor.alignment & (tensor.alignment - 1)) != 0)
    refuse(CUDNN_STATUS_BAD_PARAM,
           name_of(tensor) + " is aligned to " + std::to_string(tensor.alignment) + " bytes");
  if (tensor.by_value && (tensor.is_virtual || tensor.numel() != 1))
    refuse(CUDNN_STATUS_BAD_PARAM, name_of(tensor) + " is passed by value, but is not one element");
  return tensor;
}

Operation operation_of(const Descriptor& d) {
  switch (d.type()) {
    case CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR: {
      const Operation operation = read_pointwise(d);
      check_same_rank(operation);
      check_pointwise(operation);
      return operation;
    }
    case CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR: {
      const Operation operation = {.kind = OperationKind::matmul,
                                   .inputs = {tensor_of(d.descriptor(CUDNN_ATTR_OPERATION_MATMUL_ADESC)),
                                              tensor_of(d.descriptor(CUDNN_ATTR_OPERATION_MATMUL_BDESC))},
                                   .output = tensor_of(d.descriptor(CUDNN_ATTR_OPERATION_MATMUL_CDESC))};
      check_same_rank(operation);
      check_matmul(operation);
      return operation;
    }
    case CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR: {
      const Operation operation = {
          .kind = OperationKind::reduction,
          .reduction = d.descriptor(CUDNN_ATTR_OPERATION_REDUCTION_DESC)
                           .one<cudnnReduceTensorOp_t>(CUDNN_ATTR_REDUCTION_OPERATOR),
          .inputs = {tensor_of(d.descriptor(CUDNN_ATTR_OPERATION_REDUCTION_XDESC))},
          .output = tensor_of(d.descriptor(CUDNN_ATTR_OPERATION_REDUCTION_YDESC))};
      check_same_rank(operation);
      check_reduction(operation);
      return operation;
    }
    case CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR: {
      const Operation operation = {.kind = OperationKind::reshape,
                                   .inputs = {tensor_of(d.descriptor(CUDNN_ATTR_OPERATION_RESHAPE_XDESC))},
                                   .output = tensor_of(d.descriptor(CUDNN_ATTR_OPERATION_RESHAPE_YDESC))};
      check_reshape(operation);
      return operation;
    }
    default:
      refuse(CUDNN_STATUS_BAD_PARAM_DESCRIPTOR_TYPE, "a graph's operation is none");
  }
}

namespace {

// Of equal uids the descriptions must be equal. Each is made by one operation at most; virtual ones by one.
void add_tensor(Graph& graph, const Tensor& tensor) {
  const auto [found, added] = graph.tensors.emplace(tensor.uid, tensor);
  if (!added && !(found->second == tensor))
    refuse(CUDNN_STATUS_BAD_PARAM_DUPLICATED_ENTRIES, name_of(tensor) + " has two descriptions");
}

std::set<std::int64_t> made_by(const std::vector<Operation>& operations) {
  std::set<std::int64_t> made;
  for (const Operation& operation : operations)
    if (!made.insert(operation.output.uid).second)
      refuse(CUDNN_STATUS_BAD_PARAM_DUPLICATED_ENTRIES, name_of(operation.output) + " is made twice");
  return made;
}

}  // namespace

Graph graph_of(const Descriptor& d) {
  std::vector<Operation> waiting;
  for (const DescriptorPtr& operation : d.descriptors(CUDNN_ATTR_OPERATIONGRAPH_OPS))
    waiting.push_back(operation_of(*operation));
  Graph graph;
  for (const Operation& operation : waiting) {
    for (const Tensor& input : operation.inputs) add_tensor(graph, input);
    add_tensor(graph, operation.output);
    if (operation.output.by_value)
      refuse(CUDNN_STATUS_BAD_PARAM, name_of(operation.output) + " is passed by value and made by the graph");
  }
  const std::set<std::int64_t> made = made_by(waiting);
  std::set<std::int64_t> known;
  for (const auto& [uid, tensor] : graph.tensors)
    if (!made.contains(uid) && !tensor.is_virtual) known.insert(uid);
  while (!waiting.empty()) {
    const auto next = std::ranges::find_if(waiting, [&](const Operation& operation) {
      return std::ranges::all_of(operation.inputs, [&](const Tensor& of) { return known.contains(of.uid); });
    });
    if (next == waiting.end())
      refuse(CUDNN_STATUS_NOT_SUPPORTED_GRAPH_PATTERN,
             "no operation makes what the one that makes " + name_of(waiting.front().output) + " reads");
    known.insert(next->output.uid);
    graph.operations.push_back(std::move(*next));
    waiting.erase(next);
  }
  return graph;
}

}  // namespace tessera::emulated_cudnn
