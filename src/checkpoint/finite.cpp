#include "src/checkpoint/finite.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "kernels/casts.h"
#include "src/checkpoint/weight_map.h"
#include "tessera/error.h"

namespace tessera::checkpoint {
namespace {

// A value is not finite where all bits of its exponent are set.
template <class Bits>
std::int64_t first_with_exponent(std::span<const std::byte> values, Bits exponent) {
  const auto numel = static_cast<std::int64_t>(values.size() / sizeof(Bits));
  for (std::int64_t i = 0; i < numel; ++i) {
    Bits bits;
    std::memcpy(&bits, values.data() + i * static_cast<std::int64_t>(sizeof bits), sizeof bits);
    if ((bits & exponent) == exponent) return i;
  }
  return -1;
}

// The index of the first value that is not finite; −1 if all are.
std::int64_t first_nonfinite(DType type, std::span<const std::byte> values) {
  if (type == DType::fp32) return first_with_exponent<std::uint32_t>(values, 0x7f800000U);
  return first_with_exponent<std::uint16_t>(values, type == DType::bf16 ? 0x7f80U : 0x7c00U);
}

std::vector<std::int64_t> coordinates(std::int64_t index, const Shape& shape) {
  std::vector<std::int64_t> at(shape.size());
  for (std::size_t dim = shape.size(); dim-- > 0; index /= shape[dim]) at[dim] = index % shape[dim];
  return at;
}

[[noreturn]] void refuse(const SafetensorsFiles::Tensor& tensor, std::int64_t index, DType type,
                         std::span<const std::byte> bytes, const std::string& option) {
  float value = 0.0F;  // whose sign counts for no NaN
  kernels::cast({}, 1, type, bytes.data(), DType::fp32, &value);
  if (std::isnan(value)) value = std::fabs(value);
  throw UsageError(
      fmt::format("tensor '{}' of '{}' is {} at [{}], element {}; weights must be finite, unless {} is true",
                  tensor.entry.name, tensor.file->path().string(), value,
                  fmt::join(coordinates(index, tensor.entry.shape), ", "), index, option));
}

class Checker {
 public:
  explicit Checker(const std::string& option) : option_(option) {}

  // Elements [begin, end) of the tensor.
  void check(const SafetensorsFiles::Tensor& tensor, std::int64_t begin, std::int64_t end) {
    const DType type = *weight_type(tensor.entry.dtype);
    const std::int64_t bytes = bytes_of(type);
    for (std::int64_t at = begin; at < end; at += kStageNumel) {
      bytes_.resize(static_cast<std::size_t>(std::min(kStageNumel, end - at) * bytes));
      tensor.file->read(tensor.entry.begin + at * bytes, bytes_);
      const std::int64_t found = first_nonfinite(type, bytes_);
      if (found >= 0)
        refuse(tensor, at + found, type, std::span(bytes_).subspan(static_cast<std::size_t>(found * bytes)),
               option_);
    }
  }

 private:
  const std::string& option_;
  std::vector<std::byte> bytes_;
};

}  // namespace

void check_finite(std::span<const SafetensorsFiles::Tensor* const> tensors, int rank, int world,
                  const std::string& option) {
  std::int64_t all = 0;
  for (const SafetensorsFiles::Tensor* tensor : tensors) all += numel_of(tensor->entry.shape);
  const std::int64_t part = (all + world - 1) / world, first = part * rank, last = first + part;
  Checker checker(option);
  std::int64_t begin = 0;  // of the tensor, among the elements of all
  for (const SafetensorsFiles::Tensor* tensor : tensors) {
    const std::int64_t numel = numel_of(tensor->entry.shape);
    checker.check(*tensor, std::clamp<std::int64_t>(first - begin, 0, numel),
                  std::clamp<std::int64_t>(last - begin, 0, numel));
    begin += numel;
  }
}

}  // namespace tessera::checkpoint
