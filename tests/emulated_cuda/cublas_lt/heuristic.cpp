// Which algorithm a product gets: drawn from its shape and alignment, so that it is the same in every run.
// The numbers are all the same; algorithms differ in the workspace that they ask for and fill.
#include <deque>
#include <initializer_list>

#include "tests/emulated_cuda/cublas_lt/problem.h"
#include "tests/emulated_cuda/gpu_services.h"

namespace tessera::emulated_cuda::cublas_lt {
namespace {

constexpr std::uint64_t kMark = 0x7465737365726121u;  // of what the heuristic gave out

std::uint64_t mix(std::uint64_t hash, std::uint64_t number) {
  hash = (hash ^ number) * 0x9e3779b97f4a7c15u;
  return hash ^ hash >> 29;
}

std::uint64_t hash_of(const Problem& p, const Alignments& promised, std::uint64_t workspace_bytes) {
  std::uint64_t hash = 1;
  for (const Layout* layout : {&p.a, &p.b, &p.c, &p.d})
    for (const std::int64_t number :
         {std::int64_t{layout->type}, layout->rows, layout->columns, layout->leading})
      hash = mix(hash, static_cast<std::uint64_t>(number));
  for (const std::uint64_t number : std::initializer_list<std::uint64_t>{
           p.transpose_a, p.transpose_b, p.epilogue, p.a_scale_mode, p.b_scale_mode, promised.a, promised.b,
           promised.c, promised.d, promised.bias, workspace_bytes})
    hash = mix(hash, number);
  return hash;
}

// Half of the algorithms need none; one in sixteen takes all that it may have.
std::size_t draw_workspace(std::uint64_t hash, std::uint64_t most) {
  constexpr std::size_t kWanted[] = {0, 0, 0, 0, 0, 0, 0, 0, 16, 256, 1000, 4096, 4096, 20000, 65536};
  const std::uint64_t place = hash >> 8 & 15;
  const std::size_t wanted = place < std::size(kWanted) ? kWanted[place] : most;
  return wanted <= most ? wanted : 0;
}

// Parts are added in a fixed order, unless the caller allows atomics on D.
Split draw_split(std::uint64_t hash, std::uint32_t schemes) {
  const Split split = {.parts = 1 + static_cast<int>(hash % 3),
                       .by_chance = (schemes & CUBLASLT_REDUCTION_SCHEME_INPLACE) != 0};
  return schemes == CUBLASLT_REDUCTION_SCHEME_NONE ? Split{} : split;
}

// Operands in fp8 begin at multiples of 16.
bool lies_wrong_for_fp8(const Problem& p, const Alignments& promised) {
  return p.is_fp8() && (promised.a < 16 || promised.b < 16);
}

bool lies_within_elements(const Problem& p, const Alignments& promised) {
  return promised.a < p.a.element_bytes() || promised.b < p.b.element_bytes() ||
         promised.c < p.c.element_bytes() || promised.d < p.d.element_bytes() ||
         (p.has_bias() && promised.bias < p.d.element_bytes());
}

// All that were given out. Their places do not move.
struct Given {
  std::mutex mutex;  // guards the next
  std::deque<Algorithm> algorithms;
};
Given& given() {
  static auto* const all = new Given;
  return *all;
}

cublasLtMatmulAlgo_t give_out(const Algorithm& algorithm) {
  const std::lock_guard lock(given().mutex);
  given().algorithms.push_back(algorithm);
  const std::uint64_t place = given().algorithms.size() - 1;
  return {{kMark, place, mix(kMark, place)}};
}

// One of the three ways in which the library says that it has no algorithm.
cublasStatus_t say_none(std::uint64_t hash, cublasLtMatmulHeuristicResult_t& result, int& found) {
  found = 0;
  switch (hash % 3) {
    case 0:
      return CUBLAS_STATUS_NOT_SUPPORTED;
    case 1:
      return CUBLAS_STATUS_SUCCESS;
    default:
      found = 1;
      result = {.algo = {},
                .workspaceSize = 0,
                .state = CUBLAS_STATUS_NOT_SUPPORTED,
                .wavesCount = 0,
                .reserved = {}};
      return CUBLAS_STATUS_SUCCESS;
  }
}

}  // namespace

const Algorithm& algorithm_of(const cublasLtMatmulAlgo_t& kept) {
  const std::lock_guard lock(given().mutex);
  require_valid(kept.data[0] == kMark && kept.data[1] < given().algorithms.size() &&
                    kept.data[2] == mix(kMark, kept.data[1]),
                "the algorithm is none of the heuristic's");
  return given().algorithms[kept.data[1]];
}

}  // namespace tessera::emulated_cuda::cublas_lt

using namespace tessera::emulated_cuda::cublas_lt;

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t product,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int wanted,
                                              cublasLtMatmulHeuristicResult_t results[], int* found) {
  return answer([&] {
    const int gpu = gpu_of(handle);
    require_valid(results != nullptr && found != nullptr && wanted >= 1, "there is no place for results");
    const Description& description = descriptions().at(product);
    const Preference& preferred = preferences().at(preference);
    const Problem problem = problem_of(description, layouts().at(a), layouts().at(b), layouts().at(c),
                                       layouts().at(d), emulated_gpu_services()->compute_capability(gpu));
    const Alignments promised = {preferred.a, preferred.b, preferred.c, preferred.d,
                                 alignment_of(description.bias)};
    const std::uint64_t hash = hash_of(problem, promised, preferred.workspace_bytes);
    if (lies_within_elements(problem, promised) || lies_wrong_for_fp8(problem, promised)) {
      const cublasStatus_t status = say_none(hash, results[0], *found);
      require(status == CUBLAS_STATUS_SUCCESS, status,
              "no algorithm takes a matrix that begins within an element, or in fp8 at no multiple of 16");
      return;
    }
    const Algorithm algorithm = {.problem = problem,
                                 .gpu = gpu,
                                 .promised = promised,
                                 .workspace_bytes = draw_workspace(hash, preferred.workspace_bytes),
                                 .split = draw_split(hash, preferred.reduction_schemes)};
    *found = 1;
    results[0] = {.algo = give_out(algorithm),
                  .workspaceSize = algorithm.workspace_bytes,
                  .state = CUBLAS_STATUS_SUCCESS,
                  .wavesCount = 1.0f,
                  .reserved = {}};
  });
}
