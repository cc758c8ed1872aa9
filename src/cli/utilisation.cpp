#include "src/cli/utilisation.h"

#include <fmt/format.h>

#include <array>

namespace tessera::cli {

namespace {

struct KnownGpu {
  std::string_view name;
  double narrow_tflops;  // bf16 and fp16, dense: half of what data sheets say with sparsity
  double fp32_tflops;    // without tensor cores, which would round to TF32
};

// NVIDIA's data sheets of the A100, H100 and H200 Tensor Core GPUs.
constexpr std::array<KnownGpu, 8> kKnownGpus = {{
    {"NVIDIA A100-SXM4-40GB", 312.0, 19.5},
    {"NVIDIA A100-SXM4-80GB", 312.0, 19.5},
    {"NVIDIA A100-PCIE-40GB", 312.0, 19.5},
    {"NVIDIA A100 80GB PCIe", 312.0, 19.5},
    {"NVIDIA A100-PCIE-80GB", 312.0, 19.5},
    {"NVIDIA H100 80GB HBM3", 1979.0 / 2, 67.0},
    {"NVIDIA H100 PCIe", 1513.0 / 2, 51.0},
    {"NVIDIA H200", 1979.0 / 2, 67.0},
}};

}  // namespace

std::optional<double> known_peak_flops(std::string_view gpu, DType type) {
  for (const KnownGpu& known : kKnownGpus)
    if (known.name == gpu) return 1e12 * (type == DType::fp32 ? known.fp32_tflops : known.narrow_tflops);
  return std::nullopt;
}

std::optional<double> peak_flops(const Setup& setup, std::string_view gpu) {
  if (setup.config.run.peak_tflops > 0.0) return 1e12 * setup.config.run.peak_tflops;
  return known_peak_flops(gpu, parse_dtype(setup.config.precision.parameters));
}

Utilisation utilisation_of(const Setup& setup, std::optional<double> peak_flops_per_rank) {
  Utilisation utilisation{.flops_per_token = setup.model->flops_per_token(setup.options.batch.length)};
  if (peak_flops_per_rank) utilisation.peak_flops = *peak_flops_per_rank * setup.world();
  return utilisation;
}

std::string flops_text(double flops_per_second) {
  constexpr std::array<std::string_view, 4> kUnits = {"MFLOP/s", "GFLOP/s", "TFLOP/s", "PFLOP/s"};
  double value = flops_per_second / 1e6;
  std::size_t unit = 0;
  for (; value >= 1000.0 && unit + 1 < kUnits.size(); ++unit) value /= 1000.0;
  return fmt::format("{:.1f} {}", value, kUnits[unit]);
}

}  // namespace tessera::cli
