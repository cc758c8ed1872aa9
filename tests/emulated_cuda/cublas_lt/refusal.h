// How the stand-in refuses a call: with the status that cuBLASLt's documentation names, and a sentence that
// says what is wrong, which the real library keeps to itself.
#pragma once

#include <cublasLt.h>

#include <string>
#include <utility>

namespace tessera::emulated_cuda::cublas_lt {

struct Refusal {
  cublasStatus_t status;
  std::string why;
};

// Notes the sentence for last_refusal() of gpu_services.h. Prints it, too, where CUBLASLT_LOG_LEVEL is 1 or
// more, as the real library logs.
cublasStatus_t note(const Refusal& refusal);
// For what the real library cannot notice, or notices when it is too late. Ends the process.
[[noreturn]] void end_process(const std::string& why);

inline void require(bool holds, cublasStatus_t status, const std::string& why) {
  if (!holds) throw Refusal{status, why};
}
inline void require_valid(bool holds, const std::string& why) {
  require(holds, CUBLAS_STATUS_INVALID_VALUE, why);
}

// What a function of the interface returns: `call` throws Refusal, or succeeds.
template <class Call>
cublasStatus_t answer(Call&& call) try {
  std::forward<Call>(call)();
  return CUBLAS_STATUS_SUCCESS;
} catch (const Refusal& refusal) {
  return note(refusal);
}

}  // namespace tessera::emulated_cuda::cublas_lt
