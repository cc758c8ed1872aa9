#include "src/device/host_words.h"

#include <cuda.h>
#include <fmt/format.h>

#include <new>

#include "src/device/cuda_work.h"
#include "tessera/error.h"

namespace tessera::device {
namespace {

using Word = HostWords::Word;
static_assert(sizeof(Word) == 4 && Word::is_always_lock_free, "a GPU reads it");

// A call of the driver's, which is not linked.
template <class Call>
Call find_call(const char* name) {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found{};
  check_cuda(cudaGetDriverEntryPointByVersion(name, &function, 12000, cudaEnableDefault, &found),
             "cudaGetDriverEntryPointByVersion");
  if (found != cudaDriverEntryPointSuccess || function == nullptr)
    throw EnvironmentError(fmt::format("the NVIDIA driver has no {}; a later one has", name));
  return reinterpret_cast<Call>(function);
}

void check_driver(CUresult result, const char* call) {
  check_cuda(static_cast<cudaError_t>(result), call);  // the numbers are the runtime's
}

}  // namespace

std::shared_ptr<Word> HostWords::make(int ordinal) {
  const std::lock_guard lock(mutex_);
  if (!lines_ || made_ == kWords) {
    make_current(ordinal);
    void* memory = nullptr;
    check_cuda(cudaHostAlloc(&memory, kWords * sizeof(Line), cudaHostAllocDefault), "cudaHostAlloc");
    lines_ = {new (memory) Line[kWords], [ordinal, work = CudaWork::of(ordinal)](Line* lines) {
                ignore_cuda(cudaSetDevice(ordinal));
                if (work->wait()) ignore_cuda(cudaFreeHost(lines));  // else the GPU may still write there
              }};
    made_ = 0;
  }
  return {lines_, &lines_[static_cast<std::ptrdiff_t>(made_++)].word};
}

void enqueue_wait(cudaStream_t stream, const Word& word, std::uint32_t value) {
  static const auto wait_value = find_call<decltype(&cuStreamWaitValue32)>("cuStreamWaitValue32");
  check_driver(wait_value(stream, reinterpret_cast<CUdeviceptr>(&word), value, CU_STREAM_WAIT_VALUE_GEQ),
               "cuStreamWaitValue32");
}

void enqueue_write(cudaStream_t stream, Word& word, std::uint32_t value) {
  static const auto write_value = find_call<decltype(&cuStreamWriteValue32)>("cuStreamWriteValue32");
  check_driver(
      write_value(stream, reinterpret_cast<CUdeviceptr>(&word), value, CU_STREAM_WRITE_VALUE_DEFAULT),
      "cuStreamWriteValue32");
}

}  // namespace tessera::device
