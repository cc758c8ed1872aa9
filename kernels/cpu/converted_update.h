// Updates with gradient types for which no pass is compiled.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

#include "kernels/casts.h"
#include "kernels/update_pieces.h"

namespace tessera::kernels::cpu {

// Whether there is a pass for the gradient's type: fp32 or the parameter's type, which are those of training.
// Gradients of other types are converted to fp32 piece by piece.
inline bool has_pass(const OptimizerArguments& a) {
  return a.gradient_type == DType::fp32 || (a.parameter != nullptr && a.gradient_type == a.parameter_type);
}
constexpr std::int64_t kConvertedNumel = 4096;  // elements converted at a time

// Updates elements [begin, end) with calls of update_range(arguments, begin, end, streamed, ahead), see
// optimizer.cpp.
template <class Function>
void update_converted(const OptimizerArguments& all, std::int64_t begin, std::int64_t end,
                      const Function& update_range) {
  std::array<float, kConvertedNumel> gradient;
  for (; begin < end; begin += kConvertedNumel) {
    OptimizerArguments piece = piece_of(all, begin, std::min(kConvertedNumel, end - begin));
    cast({}, piece.numel, piece.gradient_type, piece.gradient, DType::fp32, gradient.data());
    piece.gradient_type = DType::fp32;
    piece.gradient = gradient.data();
    update_range(piece, 0, piece.numel, false, 0);
  }
}

}  // namespace tessera::kernels::cpu
