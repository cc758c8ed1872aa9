// cublasLtMatmul: what a caller may ask for, and the work that a stream is given.
#include <algorithm>
#include <array>
#include <cstring>
#include <string>
#include <utility>

#include "tests/emulated_cuda/cublas_lt/multiply.h"
#include "tests/emulated_cuda/gpu_services.h"

namespace tessera::emulated_cuda::cublas_lt {
namespace {

// A matrix in the GPU's memory.
struct Operand {
  const char* name;
  const void* data;
  const Layout& layout;
  std::uint32_t promised;  // alignment

  std::uintptr_t begin() const { return reinterpret_cast<std::uintptr_t>(data); }
  std::uintptr_t end() const { return begin() + static_cast<std::uintptr_t>(layout.bytes()); }
  // From column to column, whatever the number of columns: the library looks at the leading dim.
  std::uint32_t alignment() const {
    return std::min(alignment_of(data),
                    alignment_of(static_cast<std::uintptr_t>(layout.leading * layout.element_bytes())));
  }
};

std::string at(const void* pointer) {
  return std::to_string(reinterpret_cast<std::uintptr_t>(pointer) % 4096) + " behind a page's begin";
}

void check_operand(int gpu, const Operand& operand) {
  const std::string name = operand.name;
  require_valid(operand.data != nullptr, name + " is null");
  require_valid(operand.begin() % operand.promised == 0, name + " lies " + at(operand.data) +
                                                             "; the heuristic was promised an alignment of " +
                                                             std::to_string(operand.promised));
  if (!emulated_gpu_services()->reaches(gpu, operand.data, static_cast<std::size_t>(operand.layout.bytes())))
    end_process(name + " does not lie within one allocation of GPU " + std::to_string(gpu) + "'s memory");
}

// Whether bytes of one are the other's. Columns of two matrices may lie between each other's.
bool overlap(const Operand& x, const Operand& y) {
  if (x.end() <= y.begin() || y.end() <= x.begin()) return false;
  const auto bytes = [](std::int64_t count, const Layout& of) {
    return static_cast<std::uintptr_t>(count * of.element_bytes());
  };
  const std::uintptr_t pitch = bytes(x.layout.leading, x.layout);
  if (pitch != bytes(y.layout.leading, y.layout)) return true;
  const auto [low, high] = x.begin() < y.begin() ? std::pair(&x, &y) : std::pair(&y, &x);
  const std::uintptr_t behind = (high->begin() - low->begin()) % pitch;
  return behind < bytes(low->layout.rows, low->layout) ||
         behind + bytes(high->layout.rows, high->layout) > pitch;
}

void check_overlaps(const Operand& a, const Operand& b, const Operand& c, const Operand& d) {
  require_valid(!overlap(a, d) && !overlap(b, d), "D overlaps A or B");
  require_valid(c.data == d.data ? c.layout == d.layout : !overlap(c, d),
                "C is D in place, with one layout, or lies apart from it");
}

struct Workspace {
  void* data;
  std::size_t bytes;
};

void check_workspace(int gpu, const Algorithm& algorithm, const Workspace& workspace) {
  const auto place = reinterpret_cast<std::uintptr_t>(workspace.data);
  require_valid(workspace.bytes >= algorithm.workspace_bytes,
                "the workspace has " + std::to_string(workspace.bytes) + " bytes, and the algorithm needs " +
                    std::to_string(algorithm.workspace_bytes));
  if (workspace.bytes == 0) return;
  require_valid(workspace.data != nullptr, "the workspace is null");
  require_valid(place % 256 == 0,
                "the workspace lies " + at(workspace.data) + "; it begins at a multiple of 256");
  if (!emulated_gpu_services()->reaches(gpu, workspace.data, workspace.bytes))
    end_process("the workspace does not lie within one allocation of GPU " + std::to_string(gpu) +
                "'s memory");
}

// An algorithm may write all of the workspace at any time.
void check_apart(const Workspace& workspace, const char* name, const void* data, std::size_t bytes) {
  const auto begin = reinterpret_cast<std::uintptr_t>(data);
  const auto place = reinterpret_cast<std::uintptr_t>(workspace.data);
  require_valid(begin + bytes <= place || place + workspace.bytes <= begin,
                std::string(name) + " lies in the workspace");
}

void check_bias(int gpu, const Algorithm& algorithm, const void* bias, const Workspace& workspace) {
  const Problem& problem = algorithm.problem;
  const auto bytes = static_cast<std::size_t>(problem.m * Layout{.type = problem.bias_type}.element_bytes());
  require_valid(bias != nullptr, "the bias is null");
  require_valid(alignment_of(bias) >= algorithm.promised.bias,
                "the bias lies " + at(bias) + "; the one that the heuristic saw was aligned to " +
                    std::to_string(algorithm.promised.bias));
  if (!emulated_gpu_services()->reaches(gpu, bias, bytes))
    end_process("the bias does not lie within one allocation of GPU " + std::to_string(gpu) + "'s memory");
  check_apart(workspace, "the bias", bias, bytes);
}

void check_scales(int gpu, const char* name, const Scales& scales, const Workspace& workspace) {
  const auto bytes = static_cast<std::size_t>(scales.bytes());
  if (bytes == 0) return;
  require_valid(scales.data != nullptr, std::string(name) + "'s scales are null");
  require_valid(alignment_of(scales.data) >= 16,
                std::string(name) + "'s scales lie " + at(scales.data) + "; they begin at a multiple of 16");
  if (!emulated_gpu_services()->reaches(gpu, scales.data, bytes))
    end_process(std::string(name) + "'s scales do not lie within one allocation of GPU " +
                std::to_string(gpu) + "'s memory");
  check_apart(workspace, name, scales.data, bytes);
}

// The real library's kernels, of which a product needs one: by type, transposes, epilogue and alignment.
const void* kernel_of(const Algorithm& algorithm, std::uint32_t alignment) {
  static std::array<char, 4096> kernels;
  const Problem& p = algorithm.problem;
  const std::size_t which = (p.a.type == CUDA_R_32F ? 1U : 0U) | (p.d.type == CUDA_R_32F ? 2U : 0U) |
                            (p.transpose_a == CUBLAS_OP_T ? 4U : 0U) |
                            (p.transpose_b == CUBLAS_OP_T ? 8U : 0U) | (p.has_bias() ? 16U : 0U) |
                            (algorithm.workspace_bytes > 0 ? 32U : 0U) | (p.is_fp8() ? 64U : 0U);
  return &kernels[128 * std::min<std::uint32_t>(alignment, 16) + which];
}

float scale_at(const void* scale, const char* name) {
  require_valid(scale != nullptr, std::string(name) + " is null");
  float value = 0;
  std::memcpy(&value, scale, sizeof(value));
  return value;
}

const Algorithm& check_algorithm(int gpu, const Problem& problem, const cublasLtMatmulAlgo_t* kept) {
  require_valid(kept != nullptr, "there is no algorithm");
  const Algorithm& algorithm = algorithm_of(*kept);
  require_valid(algorithm.gpu == gpu, "the algorithm was found on another GPU");
  require_valid(algorithm.problem == problem, "the algorithm was found for " + words_of(algorithm.problem) +
                                                  ", this is " + words_of(problem));
  return algorithm;
}

void check_stream(int gpu, cudaStream_t stream) {
  require_valid(stream != nullptr, "the stand-in gives no work to the legacy stream");
  require(emulated_gpu_services()->gpu_of(stream) == gpu, CUBLAS_STATUS_EXECUTION_FAILED,
          "the stream is another GPU's");
}

// Returns the least alignment of an operand.
std::uint32_t check_places(int gpu, const Algorithm& algorithm, const Product& work,
                           const Workspace& workspace) {
  const Problem& problem = algorithm.problem;
  const Alignments& promised = algorithm.promised;
  const Operand operands[] = {{"A", work.a, problem.a, promised.a},
                              {"B", work.b, problem.b, promised.b},
                              {"C", work.c, problem.c, promised.c},
                              {"D", work.d, problem.d, promised.d}};
  check_workspace(gpu, algorithm, workspace);
  std::uint32_t least = 256;
  for (const Operand& operand : operands) {
    check_operand(gpu, operand);
    check_apart(workspace, operand.name, operand.data, static_cast<std::size_t>(operand.layout.bytes()));
    least = std::min(least, operand.alignment());
  }
  check_overlaps(operands[0], operands[1], operands[2], operands[3]);
  if (problem.has_bias()) check_bias(gpu, algorithm, work.bias, workspace);
  check_scales(gpu, "A", work.a_scales, workspace);
  check_scales(gpu, "B", work.b_scales, workspace);
  return least;
}

}  // namespace
}  // namespace tessera::emulated_cuda::cublas_lt

using namespace tessera::emulated_cuda;
using namespace tessera::emulated_cuda::cublas_lt;

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t product, const void* alpha,
                              const void* a, cublasLtMatrixLayout_t a_layout, const void* b,
                              cublasLtMatrixLayout_t b_layout, const void* beta, const void* c,
                              cublasLtMatrixLayout_t c_layout, void* d, cublasLtMatrixLayout_t d_layout,
                              const cublasLtMatmulAlgo_t* kept, void* workspace_data,
                              std::size_t workspace_bytes, cudaStream_t stream) {
  return answer([&] {
    const int gpu = gpu_of(handle);
    const Description& description = descriptions().at(product);
    const Problem problem =
        problem_of(description, layouts().at(a_layout), layouts().at(b_layout), layouts().at(c_layout),
                   layouts().at(d_layout), emulated_gpu_services()->compute_capability(gpu));
    const Algorithm& algorithm = check_algorithm(gpu, problem, kept);
    check_stream(gpu, stream);
    const Product work = {.problem = problem,
                          .alpha = scale_at(alpha, "alpha"),
                          .beta = scale_at(beta, "beta"),
                          .a = a,
                          .b = b,
                          .bias = problem.has_bias() ? description.bias : nullptr,
                          .a_scales = {problem.a_scale_mode, description.a_scales, problem.m, problem.k},
                          .b_scales = {problem.b_scale_mode, description.b_scales, problem.n, problem.k},
                          .c = c,
                          .d = d,
                          .split = algorithm.split};
    const std::uint32_t least = check_places(gpu, algorithm, work, {workspace_data, workspace_bytes});
    const GpuServices& services = *emulated_gpu_services();
    services.note_product(static_cast<int>(least), words_of(problem));
    services.load(kernel_of(algorithm, least), stream);
    services.give(stream, [work, workspace_data, used = algorithm.workspace_bytes] {
      if (used > 0) std::memset(workspace_data, 0xff, used);  // NaN, as fp32 and as bf16
      multiply(work);
    });
  });
}
