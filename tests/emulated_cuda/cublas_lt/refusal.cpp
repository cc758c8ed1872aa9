#include "tests/emulated_cuda/cublas_lt/refusal.h"

#include <cstdio>
#include <cstdlib>

#include "tests/emulated_cuda/gpu_services.h"

namespace tessera::emulated_cuda::cublas_lt {

cublasStatus_t note(const Refusal& refusal) {
  static const char* const level = std::getenv("CUBLASLT_LOG_LEVEL");
  static const bool prints = level != nullptr && std::atoi(level) >= 1;
  emulated_gpu_services()->note_refusal(refusal.why);
  if (prints)
    std::fprintf(stderr, "emulated cuBLASLt: %s: %s\n", cublasLtGetStatusName(refusal.status),
                 refusal.why.c_str());
  return refusal.status;
}

void end_process(const std::string& why) {
  std::fprintf(stderr, "emulated cuBLASLt: %s\n", why.c_str());
  std::abort();
}

}  // namespace tessera::emulated_cuda::cublas_lt

namespace {

struct Words {
  const char* name;
  const char* text;
};
Words words_of(cublasStatus_t status) {
  switch (status) {
    case CUBLAS_STATUS_SUCCESS:
      return {"CUBLAS_STATUS_SUCCESS", "success"};
    case CUBLAS_STATUS_NOT_INITIALIZED:
      return {"CUBLAS_STATUS_NOT_INITIALIZED", "the library was not initialized"};
    case CUBLAS_STATUS_INVALID_VALUE:
      return {"CUBLAS_STATUS_INVALID_VALUE", "an unsupported value or parameter was passed to the function"};
    case CUBLAS_STATUS_EXECUTION_FAILED:
      return {"CUBLAS_STATUS_EXECUTION_FAILED", "the function failed to launch on the GPU"};
    case CUBLAS_STATUS_NOT_SUPPORTED:
      return {"CUBLAS_STATUS_NOT_SUPPORTED", "the functionality is not supported"};
  }
  return {"<unknown>", "<unknown>"};
}

}  // namespace

const char* cublasLtGetStatusName(cublasStatus_t status) { return words_of(status).name; }
const char* cublasLtGetStatusString(cublasStatus_t status) { return words_of(status).text; }
