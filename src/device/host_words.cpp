#include "src/device/host_words.h"

#include <cuda.h>

#include <new>

#include "tessera/error.h"

namespace tessera::device {
namespace {

using Word = std::atomic<std::uint32_t>;
static_assert(sizeof(Word) == 4 && Word::is_always_lock_free, "a GPU reads it");
using WaitValue = decltype(&cuStreamWaitValue32);

// The driver's, which is not linked.
WaitValue find_wait_value() {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found{};
  check_cuda(
      cudaGetDriverEntryPointByVersion("cuStreamWaitValue32", &function, 12000, cudaEnableDefault, &found),
      "cudaGetDriverEntryPointByVersion");
  if (found != cudaDriverEntryPointSuccess || function == nullptr)
    throw EnvironmentError("the NVIDIA driver has no cuStreamWaitValue32; a later one has");
  return reinterpret_cast<WaitValue>(function);
}

}  // namespace

std::shared_ptr<Word> make_host_word(int ordinal) {
  make_current(ordinal);
  void* memory = nullptr;
  check_cuda(cudaHostAlloc(&memory, sizeof(Word), cudaHostAllocDefault), "cudaHostAlloc");
  return {new (memory) Word(0), [ordinal](Word* word) {
            ignore_cuda(cudaSetDevice(ordinal));
            ignore_cuda(cudaFreeHost(word));
          }};
}

void enqueue_wait(cudaStream_t stream, const Word& word, std::uint32_t value) {
  static const WaitValue wait_value = find_wait_value();
  const CUresult result =
      wait_value(stream, reinterpret_cast<CUdeviceptr>(&word), value, CU_STREAM_WAIT_VALUE_GEQ);
  check_cuda(static_cast<cudaError_t>(result), "cuStreamWaitValue32");  // the numbers are the runtime's
}

}  // namespace tessera::device
