// Model FLOPs utilisation (Chowdhery et al. 2022, PaLM, appendix B): the operations of the model itself, by
// Model::flops_per_token(), as a share of the devices' peak. If the peak is not known, there is no share.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "src/cli/setup.h"

namespace tessera::cli {

// The peak operations a second of matrix products in this type on a GPU with this name, which is the
// driver's. Multiplications and additions count separately. From its data sheet, without sparsity. Nothing
// for a GPU that is not in the table.
std::optional<double> known_peak_flops(std::string_view gpu, DType type);

// The peak operations a second of one rank's device: run.peak_tflops if that is given, else
// known_peak_flops() of `gpu`; nothing on a CPU. All ranks' devices are assumed to be like the first one's.
std::optional<double> peak_flops(const Setup& setup, std::string_view gpu);

struct Utilisation {
  double flops_per_token = 0;          // operations of the model per token
  std::optional<double> peak_flops{};  // operations a second, of all ranks' devices

  double flops(double tokens_per_second) const { return flops_per_token * tokens_per_second; }
  std::optional<double> share(double tokens_per_second) const {
    if (!peak_flops) return std::nullopt;
    return flops(tokens_per_second) / *peak_flops;
  }
};
Utilisation utilisation_of(const Setup& setup, std::optional<double> peak_flops_per_rank);

std::string flops_text(double flops_per_second);  // "12.3 TFLOP/s"

}  // namespace tessera::cli
