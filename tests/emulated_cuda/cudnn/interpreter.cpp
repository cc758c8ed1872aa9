#include "tests/emulated_cuda/cudnn/interpreter.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <limits>

#include "kernels/float_types.h"

namespace tessera::emulated_cudnn {
namespace {

using kernels::Bf16;
using kernels::Fp16;
using kernels::from_float;
using kernels::to_float;

// The elements of a tensor, the last dim first, without gaps.
struct Values {
  Extents dims = {};
  std::vector<double> elements = {};
};

template <class T>
double load_as(const void* address) {
  T element;
  std::memcpy(&element, address, sizeof(T));
  return static_cast<double>(element);
}

template <class T>
void store_as(void* address, T element) {
  std::memcpy(address, &element, sizeof(T));
}

void store(cudnnDataType_t type, void* address, double value) {
  const auto narrow = static_cast<float>(value);
  switch (type) {
    case CUDNN_DATA_BFLOAT16:
      return store_as(address, from_float<Bf16>(narrow));
    case CUDNN_DATA_HALF:
      return store_as(address, from_float<Fp16>(narrow));
    case CUDNN_DATA_INT32:
      return store_as(address, static_cast<std::int32_t>(value));
    case CUDNN_DATA_BOOLEAN:
      return store_as(address, value != 0);
    default:
      return store_as(address, narrow);
  }
}

double rounded(cudnnDataType_t type, double value) {
  std::array<std::byte, 8> element;
  store(type, element.data(), value);
  return load_value(type, element.data());
}

Extents dense_strides(const Extents& dims) {
  Extents strides(dims.size(), 1);
  for (std::size_t d = dims.size(); d-- > 1;) strides[d - 1] = strides[d] * dims[d];
  return strides;
}

// Calls function(offsets) for each element, the last dim first: where it lies by each of the strides.
template <std::size_t N, class Function>
void for_each_element(const Extents& dims, const std::array<Extents, N>& strides, Function&& function) {
  Extents index(dims.size(), 0);
  std::array<std::int64_t, N> offsets = {};
  for (;;) {
    function(offsets);
    std::size_t d = dims.size();
    for (;;) {
      if (d-- == 0) return;
      for (std::size_t n = 0; n < N; ++n) offsets[n] += strides[n][d];
      if (++index[d] < dims[d]) break;
      index[d] = 0;
      for (std::size_t n = 0; n < N; ++n) offsets[n] -= strides[n][d] * dims[d];
    }
  }
}

Values load(const Tensor& tensor, const std::byte* memory) {
  Values values = {.dims = tensor.dims};
  values.elements.reserve(static_cast<std::size_t>(tensor.numel()));
  for_each_element<1>(tensor.dims, {tensor.strides}, [&](const auto& at) {
    values.elements.push_back(load_value(tensor.type, memory + at[0] * bytes_of(tensor.type)));
  });
  return values;
}

void store(const Tensor& tensor, std::byte* memory, const std::function<double(std::size_t)>& element) {
  std::size_t next = 0;
  for_each_element<1>(tensor.dims, {tensor.strides}, [&](const auto& at) {
    store(tensor.type, memory + at[0] * bytes_of(tensor.type), element(next++));
  });
}

// --- Pointwise ---------------------------------------------------------------------------------------------

using Three = std::array<double, 3>;  // x, b and t
using Mode = double (*)(const Three&);

// Null for a mode that is not known, and for GEN_INDEX, which reads no element.
Mode function_of(cudnnPointwiseMode_t mode) {
  switch (mode) {
    case CUDNN_POINTWISE_ADD:
      return [](const Three& v) { return v[0] + v[1]; };
    case CUDNN_POINTWISE_SUB:
      return [](const Three& v) { return v[0] - v[1]; };
    case CUDNN_POINTWISE_MUL:
      return [](const Three& v) { return v[0] * v[1]; };
    case CUDNN_POINTWISE_DIV:
      return [](const Three& v) { return v[0] / v[1]; };
    case CUDNN_POINTWISE_MAX:
      return [](const Three& v) { return std::max(v[0], v[1]); };
    case CUDNN_POINTWISE_MIN:
      return [](const Three& v) { return std::min(v[0], v[1]); };
    case CUDNN_POINTWISE_EXP:
      return [](const Three& v) { return std::exp(v[0]); };
    case CUDNN_POINTWISE_LOG:
      return [](const Three& v) { return std::log(v[0]); };
    case CUDNN_POINTWISE_NEG:
      return [](const Three& v) { return -v[0]; };
    case CUDNN_POINTWISE_SQRT:
      return [](const Three& v) { return std::sqrt(v[0]); };
    case CUDNN_POINTWISE_IDENTITY:
      return [](const Three& v) { return v[0]; };
    case CUDNN_POINTWISE_CMP_EQ:
      return [](const Three& v) { return static_cast<double>(v[0] == v[1]); };
    case CUDNN_POINTWISE_CMP_GT:
      return [](const Three& v) { return static_cast<double>(v[0] > v[1]); };
    case CUDNN_POINTWISE_CMP_GE:
      return [](const Three& v) { return static_cast<double>(v[0] >= v[1]); };
    case CUDNN_POINTWISE_CMP_LT:
      return [](const Three& v) { return static_cast<double>(v[0] < v[1]); };
    case CUDNN_POINTWISE_CMP_LE:
      return [](const Three& v) { return static_cast<double>(v[0] <= v[1]); };
    case CUDNN_POINTWISE_LOGICAL_AND:
      return [](const Three& v) { return static_cast<double>(v[0] != 0 && v[1] != 0); };
    case CUDNN_POINTWISE_BINARY_SELECT:
      return [](const Three& v) { return v[2] != 0 ? v[0] : v[1]; };
    default:
      return nullptr;
  }
}

std::size_t inputs_of(cudnnPointwiseMode_t mode) {
  switch (mode) {
    case CUDNN_POINTWISE_EXP:
    case CUDNN_POINTWISE_LOG:
    case CUDNN_POINTWISE_NEG:
    case CUDNN_POINTWISE_SQRT:
    case CUDNN_POINTWISE_IDENTITY:
    case CUDNN_POINTWISE_GEN_INDEX:
      return 1;
    case CUDNN_POINTWISE_BINARY_SELECT:
      return 3;
    default:
      return 2;
  }
}

// Strides 0 where a dim of 1 stands for all.
Extents broadcast(const Values& values) {
  Extents strides = dense_strides(values.dims);
  for (std::size_t d = 0; d < strides.size(); ++d)
    if (values.dims[d] == 1) strides[d] = 0;
  return strides;
}

std::vector<double> pointwise(const Operation& operation, const std::vector<const Values*>& inputs) {
  const Extents& dims = operation.output.dims;
  std::vector<double> made;
  made.reserve(static_cast<std::size_t>(operation.output.numel()));
  if (operation.mode == CUDNN_POINTWISE_GEN_INDEX) {
    Extents along(dims.size(), 0);
    along[static_cast<std::size_t>(operation.axis)] = 1;
    for_each_element<1>(dims, {along}, [&](const auto& at) { made.push_back(static_cast<double>(at[0])); });
    return made;
  }
  const Mode function = function_of(operation.mode);
  std::array<const Values*, 3> operands;
  std::array<Extents, 3> strides;
  for (std::size_t n = 0; n < 3; ++n) {
    operands[n] = inputs[std::min(n, inputs.size() - 1)];
    strides[n] = broadcast(*operands[n]);
  }
  const auto at = [&](std::size_t n, std::int64_t offset) {
    return operands[n]->elements[static_cast<std::size_t>(offset)];
  };
  for_each_element<3>(dims, strides, [&](const std::array<std::int64_t, 3>& offsets) {
    made.push_back(function(
        {operation.alpha1 * at(0, offsets[0]), operation.alpha2 * at(1, offsets[1]), at(2, offsets[2])}));
  });
  return made;
}

// --- The others --------------------------------------------------------------------------------------------

std::vector<double> matmul(const Operation& operation, const Values& a, const Values& b) {
  const Extents& dims = operation.output.dims;
  const std::size_t rank = dims.size();
  const std::int64_t rows = dims[rank - 2], columns = dims[rank - 1], depth = a.dims[rank - 1];
  std::vector<double> made(static_cast<std::size_t>(operation.output.numel()), 0.0);
  const Extents matrices(dims.begin(), dims.end() - 2);
  const std::int64_t count = operation.output.numel() / (rows * columns);
  for (std::int64_t matrix = 0; matrix < count; ++matrix) {
    std::int64_t of_b = 0, rest = matrix, step = 1;
    for (std::size_t d = matrices.size(); d-- > 0;) {
      const std::int64_t shared = matrices[d] / b.dims[d];
      of_b += rest % matrices[d] / shared * step;
      step *= b.dims[d];
      rest /= matrices[d];
    }
    const double* const left = &a.elements[static_cast<std::size_t>(matrix * rows * depth)];
    const double* const right = &b.elements[static_cast<std::size_t>(of_b * depth * columns)];
    double* const sums = &made[static_cast<std::size_t>(matrix * rows * columns)];
    for (std::int64_t i = 0; i < rows; ++i)
      for (std::int64_t k = 0; k < depth; ++k)
        for (std::int64_t j = 0; j < columns; ++j)
          sums[i * columns + j] += left[i * depth + k] * right[k * columns + j];
  }
  return made;
}

std::vector<double> reduce(const Operation& operation, const Values& x) {
  const Extents& dims = operation.output.dims;
  const bool adds = operation.reduction == CUDNN_REDUCE_TENSOR_ADD;
  std::vector<double> made(static_cast<std::size_t>(operation.output.numel()),
                           adds ? 0.0 : -std::numeric_limits<double>::infinity());
  const Extents strides = dense_strides(dims);
  Extents index(dims.size(), 0);
  for (const double element : x.elements) {
    std::int64_t at = 0;
    for (std::size_t d = 0; d < dims.size(); ++d) at += index[d] / (x.dims[d] / dims[d]) * strides[d];
    double& result = made[static_cast<std::size_t>(at)];
    result = adds ? result + element : std::max(result, element);
    for (std::size_t d = dims.size(); d-- > 0 && ++index[d] == x.dims[d];) index[d] = 0;
  }
  return made;
}

std::vector<double> reshape(const Operation& operation, const Values& x) {
  const Tensor &from = operation.inputs[0], &to = operation.output;
  std::vector<double> memory(static_cast<std::size_t>(from.extent()),
                             std::numeric_limits<double>::quiet_NaN());
  std::size_t next = 0;
  for_each_element<1>(from.dims, {from.strides},
                      [&](const auto& at) { memory[static_cast<std::size_t>(at[0])] = x.elements[next++]; });
  std::vector<double> made;
  made.reserve(x.elements.size());
  for_each_element<1>(to.dims, {to.strides},
                      [&](const auto& at) { made.push_back(memory[static_cast<std::size_t>(at[0])]); });
  return made;
}

std::vector<double> compute(const Operation& operation, const std::vector<const Values*>& inputs) {
  switch (operation.kind) {
    case OperationKind::matmul:
      return matmul(operation, *inputs[0], *inputs[1]);
    case OperationKind::reduction:
      return reduce(operation, *inputs[0]);
    case OperationKind::reshape:
      return reshape(operation, *inputs[0]);
    default:
      return pointwise(operation, inputs);
  }
}

}  // namespace

double load_value(cudnnDataType_t type, const void* address) {
  switch (type) {
    case CUDNN_DATA_BFLOAT16:
      return static_cast<double>(to_float(Bf16{static_cast<std::uint16_t>(load_as<std::uint16_t>(address))}));
    case CUDNN_DATA_HALF:
      return static_cast<double>(to_float(Fp16{static_cast<std::uint16_t>(load_as<std::uint16_t>(address))}));
    case CUDNN_DATA_INT32:
      return load_as<std::int32_t>(address);
    case CUDNN_DATA_BOOLEAN:
      return load_as<std::uint8_t>(address);
    default:
      return load_as<float>(address);
  }
}

bool is_known(const Graph& graph) {
  return std::ranges::all_of(graph.operations, [](const Operation& operation) {
    if (operation.kind == OperationKind::pointwise)
      return (operation.mode == CUDNN_POINTWISE_GEN_INDEX || function_of(operation.mode) != nullptr) &&
             operation.inputs.size() == inputs_of(operation.mode);
    return operation.kind != OperationKind::reduction || operation.reduction == CUDNN_REDUCE_TENSOR_ADD ||
           operation.reduction == CUDNN_REDUCE_TENSOR_MAX;
  });
}

void interpret(const Graph& graph, const Bindings& bindings, double factor) {
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  for (const Operation& operation : graph.operations)
    if (operation.output.in_memory())
      store(operation.output, bindings.memory.at(operation.output.uid), [](std::size_t) { return kNan; });
  std::map<std::int64_t, Values> known;
  const auto values_of = [&](const Tensor& tensor) -> const Values& {
    const auto found = known.find(tensor.uid);
    if (found != known.end()) return found->second;
    Values values = tensor.by_value ? Values{tensor.dims, {bindings.values.at(tensor.uid)}}
                                    : load(tensor, bindings.memory.at(tensor.uid));
    return known.emplace(tensor.uid, std::move(values)).first->second;
  };
  for (const Operation& operation : graph.operations) {
    std::vector<const Values*> inputs;
    for (const Tensor& input : operation.inputs) inputs.push_back(&values_of(input));
    const Tensor& output = operation.output;
    Values made = {output.dims, compute(operation, inputs)};
    for (double& element : made.elements) element = rounded(output.type, element);
    if (output.in_memory())
      store(output, bindings.memory.at(output.uid), [&](std::size_t i) { return factor * made.elements[i]; });
    known[output.uid] = std::move(made);
  }
}

}  // namespace tessera::emulated_cudnn
