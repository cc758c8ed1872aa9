#include "tests/emulated_cuda/cublas_lt/problem.h"

#include "tests/emulated_cuda/cublas_lt/scales.h"

namespace tessera::emulated_cuda::cublas_lt {
namespace {

std::string words_of(const char* name, const Layout& layout, cublasOperation_t operation) {
  return std::string(name) + "[" + std::to_string(layout.rows) + ", " + std::to_string(layout.columns) +
         " by " + std::to_string(layout.leading) + "]" + (operation == CUBLAS_OP_T ? "^T" : "") + " " +
         (layout.type == CUDA_R_32F    ? "fp32"
          : layout.type == CUDA_R_16BF ? "bf16"
                                       : "fp8");
}

void check_types(const Problem& p, const std::string& words) {
  const bool types = p.a.type == p.b.type && p.c.type == p.d.type && p.d.type != CUDA_R_8F_E4M3 &&
                     (p.d.type == CUDA_R_32F || p.a.type != CUDA_R_32F);
  require(types, CUBLAS_STATUS_NOT_SUPPORTED, "the types do not go together: " + words);
  const cudaDataType_t bias = p.is_fp8() ? CUDA_R_16BF : p.d.type;
  require(!p.has_bias() || p.bias_type == bias, CUBLAS_STATUS_NOT_SUPPORTED,
          "the bias has not the type that goes with D: " + words);
}

void check_fp8(const Problem& p, int compute_capability, const std::string& words) {
  const auto supported = [&](bool right, const std::string& why) {
    require(right, CUBLAS_STATUS_NOT_SUPPORTED, why + ": " + words);
  };
  constexpr auto kNone = CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F;
  if (!p.is_fp8()) return supported(p.a_scale_mode == kNone && p.b_scale_mode == kNone, "scales are fp8's");
  supported(p.transpose_a == CUBLAS_OP_T && p.transpose_b == CUBLAS_OP_N,
            "in fp8 A is transposed, and B is not");
  for (const std::int64_t extent : {p.m, p.n, p.k, p.a.leading, p.b.leading, p.d.leading})
    supported(extent % 16 == 0, "in fp8 an extent is a multiple of 16, not " + std::to_string(extent));
  supported(go_together(p.a_scale_mode, p.b_scale_mode), "the modes of scales do not go together");
  supported(compute_capability / 10 == 9
                ? p.a_scale_mode != CUBLASLT_MATMUL_MATRIX_SCALE_VEC32_UE8M0
                : compute_capability >= 100 && p.a_scale_mode == CUBLASLT_MATMUL_MATRIX_SCALE_VEC32_UE8M0,
            "compute capability " + std::to_string(compute_capability) + " does not take such scales");
}

void check_leading(const char* name, const Layout& layout) {
  require_valid(layout.leading >= layout.rows,
                std::string(name) + ": the leading dim " + std::to_string(layout.leading) +
                    " is shorter than a column of " + std::to_string(layout.rows));
}

}  // namespace

std::string words_of(const Problem& p) {
  return words_of("D", p.d, CUBLAS_OP_N) + " = " + words_of("A", p.a, p.transpose_a) + " x " +
         words_of("B", p.b, p.transpose_b) + (p.has_bias() ? " + bias" : "");
}

Problem problem_of(const Description& description, const Layout& a, const Layout& b, const Layout& c,
                   const Layout& d, int compute_capability) {
  const bool turned_a = description.a == CUBLAS_OP_T, turned_b = description.b == CUBLAS_OP_T;
  Problem p = {
      .m = d.rows,
      .n = d.columns,
      .k = turned_a ? a.rows : a.columns,
      .a = a,
      .b = b,
      .c = c,
      .d = d,
      .transpose_a = description.a,
      .transpose_b = description.b,
      .epilogue = description.epilogue,
      .bias_type = description.bias_type < 0 ? d.type : static_cast<cudaDataType_t>(description.bias_type),
      .a_scale_mode = description.a_scale_mode,
      .b_scale_mode = description.b_scale_mode};
  const std::string words = words_of(p);
  require_valid((turned_a ? a.columns : a.rows) == p.m && (turned_b ? b.columns : b.rows) == p.k &&
                    (turned_b ? b.rows : b.columns) == p.n && c.rows == p.m && c.columns == p.n,
                "the shapes do not go together: " + words);
  check_leading("A", a);
  check_leading("B", b);
  check_leading("C", c);
  check_leading("D", d);
  check_types(p, words);
  check_fp8(p, compute_capability, words);
  return p;
}

}  // namespace tessera::emulated_cuda::cublas_lt
