#include "tests/emulated_cuda/cublas_lt/problem.h"

namespace tessera::emulated_cuda::cublas_lt {
namespace {

std::string words_of(const char* name, const Layout& layout, cublasOperation_t operation) {
  return std::string(name) + "[" + std::to_string(layout.rows) + ", " + std::to_string(layout.columns) +
         " by " + std::to_string(layout.leading) + "]" + (operation == CUBLAS_OP_T ? "^T" : "") + " " +
         (layout.type == CUDA_R_32F ? "fp32" : "bf16");
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
                   const Layout& d) {
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
      .bias_type = description.bias_type < 0 ? d.type : static_cast<cudaDataType_t>(description.bias_type)};
  const std::string words = words_of(p);
  require_valid((turned_a ? a.columns : a.rows) == p.m && (turned_b ? b.columns : b.rows) == p.k &&
                    (turned_b ? b.rows : b.columns) == p.n && c.rows == p.m && c.columns == p.n,
                "the shapes do not go together: " + words);
  check_leading("A", a);
  check_leading("B", b);
  check_leading("C", c);
  check_leading("D", d);
  require(a.type == b.type && c.type == d.type && (d.type == CUDA_R_32F || a.type == CUDA_R_16BF),
          CUBLAS_STATUS_NOT_SUPPORTED, "the types do not go together: " + words);
  require(!p.has_bias() || p.bias_type == d.type, CUBLAS_STATUS_NOT_SUPPORTED,
          "the bias has not the type of D: " + words);
  return p;
}

}  // namespace tessera::emulated_cuda::cublas_lt
