// Model FLOPs utilisation (Chowdhery et al. 2022, PaLM, appendix B): the operations of the model itself, by
// Model::flops_per_token, as a share of what the devices could do. Where that is not known there is no share.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "src/cli/setup.h"

namespace tessera::cli {

// Matrix products a second at best, multiplications and additions counted each, of a GPU of this name (as the
// driver tells it) in this type: by its data sheet, without sparsity. Nothing where it is none of those
// known.
std::optional<double> known_peak_flops(std::string_view gpu, DType type);

// Of one rank's device: run.peak_tflops where that is given, else what is known of `gpu`; empty on a CPU. All
// ranks' are taken to be like the first one's.
std::optional<double> peak_flops(const Setup& setup, std::string_view gpu);

struct Utilisation {
  double flops_per_token = 0;          // of the model
  std::optional<double> peak_flops{};  // a second, of all ranks' devices

  double flops(double tokens_per_second) const { return flops_per_token * tokens_per_second; }
  std::optional<double> share(double tokens_per_second) const {
    if (!peak_flops) return std::nullopt;
    return flops(tokens_per_second) / *peak_flops;
  }
};
Utilisation utilisation_of(const Setup& setup, std::optional<double> peak_flops_per_rank);

std::string flops_text(double flops_per_second);  // "12.3 TFLOP/s"

}  // namespace tessera::cli
