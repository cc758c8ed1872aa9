#include "src/checkpoint/weight_map.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "tessera/error.h"

namespace tessera::checkpoint {
namespace {

void check_tensor(const StoredTensor& tensor, const Layout& layout) {
  const ParameterSpec& parameter = layout.parameter(layout.find(tensor.parameter));
  if (!parameter.tied_to.empty())
    throw UsageError(fmt::format("tensor '{}' is given '{}', which is tied to '{}'; give it that",
                                 tensor.name, tensor.parameter, parameter.tied_to));
  if (tensor.transposed && tensor.shape.size() != 2)
    throw UsageError(fmt::format("tensor '{}' of shape {} cannot be transposed; that needs two dims",
                                 tensor.name, to_string(tensor.shape)));
  if (!tensor.added) return;
  const StoredTensor::Product& product = *tensor.added;
  const Shape &left = layout.parameter(layout.find(product.left)).shape,
              &right = layout.parameter(layout.find(product.right)).shape;
  const Shape of = tensor.transposed ? Shape{tensor.shape[1], tensor.shape[0]} : tensor.shape;
  if (of.size() != 2 || left.size() != 2 || right.size() != 2 || left[1] != product.rank ||
      right[1] != of[1] || product.left_row < 0 || product.left_row + of[0] > left[0] ||
      product.right_row < 0 || product.right_row + product.rank > right[0])
    throw UsageError(fmt::format("tensor '{}' of shape {}: the product of '{}' and '{}' is of another shape",
                                 tensor.name, to_string(tensor.shape), product.left, product.right));
}

}  // namespace

void check_covers(const WeightMap& map, const Layout& layout) {
  std::map<ParameterId, std::vector<const StoredTensor*>> of_parameter;
  std::set<std::string> names;
  for (const StoredTensor& tensor : map.tensors) {
    check_tensor(tensor, layout);
    if (!names.insert(tensor.name).second)
      throw UsageError(fmt::format("tensor '{}' stands twice in the weight map", tensor.name));
    of_parameter[layout.find(tensor.parameter)].push_back(&tensor);
  }
  for (ParameterId id = 0; id < layout.parameters(); ++id) {
    if (!layout.parameter(id).tied_to.empty()) continue;
    std::int64_t covered = 0;
    auto& parts = of_parameter[id];
    if (parts.empty() && !map.whole) continue;
    std::ranges::sort(parts, {}, &StoredTensor::begin);
    for (const StoredTensor* part : parts) {
      if (part->begin != covered) break;
      covered += numel_of(part->shape);
    }
    if (begin_of_padding(map, layout.parameter(id).name) == covered) continue;
    if (const std::int64_t numel = layout.shares(id).global_numel(); covered != numel)
      throw UsageError(fmt::format("the weight map gives '{}' {} elements in a row; it has {}",
                                   layout.parameter(id).name, covered, numel));
  }
}

std::int64_t begin_of_padding(const WeightMap& map, const std::string& parameter) {
  const auto found = std::ranges::find(map.padding, parameter, &WeightMap::Padding::parameter);
  return found == map.padding.end() ? -1 : found->begin;
}

std::int64_t rows_of_stage(std::int64_t rows, std::int64_t columns) {
  return std::clamp<std::int64_t>(kStageNumel / columns, 1, rows);
}

void transpose(std::int64_t rows, std::int64_t columns, const float* input, float* output) {
  constexpr std::int64_t kBlock = 32;  // both sides of a block stay in the first cache
  for (std::int64_t r0 = 0; r0 < rows; r0 += kBlock)
    for (std::int64_t c0 = 0; c0 < columns; c0 += kBlock)
      for (std::int64_t r = r0; r < std::min(r0 + kBlock, rows); ++r)
        for (std::int64_t c = c0; c < std::min(c0 + kBlock, columns); ++c)
          output[c * rows + r] = input[r * columns + c];
}

}  // namespace tessera::checkpoint
