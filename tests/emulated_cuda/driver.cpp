// The emulated driver's own calls, and functions of the host in streams.
#include <cuda.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <map>
#include <string_view>
#include <thread>

#include "tests/emulated_cuda/calls.h"
#include "tests/emulated_cuda/emulator.h"
#include "tests/emulated_cuda/streams.h"

using namespace tessera::emulated_cuda;

namespace {

std::array<std::atomic<bool>, kGpus> contexts{};  // [ordinal] the process has one
std::atomic<int> functions_of_host{0};
// For programs: EMULATED_CUDA_STREAM_MEMORY=missing.
std::atomic<tessera::emulated_cuda::StreamMemory> stream_memory{
    std::getenv("EMULATED_CUDA_STREAM_MEMORY") == nullptr ? tessera::emulated_cuda::StreamMemory::works
                                                          : tessera::emulated_cuda::StreamMemory::missing};
std::atomic<int> waits_for_host{0};

}  // namespace

namespace tessera::emulated_cuda {

int host_waits() { return waits_for_host.load(); }
int host_functions() { return functions_of_host.load(); }
void set_stream_memory(StreamMemory how) { stream_memory.store(how); }
void note_context(int ordinal) { contexts[static_cast<std::size_t>(ordinal)] = true; }

}  // namespace tessera::emulated_cuda

CUresult cuStreamWaitValue32(CUstream stream, CUdeviceptr address, cuuint32_t value, unsigned) {
  if (const cudaError_t refused = begin_driver_call("cuStreamWaitValue32"))
    return static_cast<CUresult>(refused);
  if (!calling_thread().has_context) return CUDA_ERROR_INVALID_CONTEXT;
  if (stream_memory.load() == StreamMemory::refused) return CUDA_ERROR_NOT_SUPPORTED;
  if (spoils_capture(*stream->work)) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  enter_driver(stream->work->ordinal());
  ++waits_for_host;
  if (stream_memory.load() == StreamMemory::loses_waits) return CUDA_SUCCESS;
  stream->work->give_wait([address, value] {
    const auto& word = *reinterpret_cast<const std::atomic<std::uint32_t>*>(address);
    while (static_cast<std::int32_t>(word.load() - value) < 0)
      std::this_thread::sleep_for(std::chrono::microseconds(20));
  });
  return CUDA_SUCCESS;
}
CUresult cuStreamWriteValue32(CUstream stream, CUdeviceptr address, cuuint32_t value, unsigned) {
  if (const cudaError_t refused = begin_driver_call("cuStreamWriteValue32"))
    return static_cast<CUresult>(refused);
  if (!calling_thread().has_context) return CUDA_ERROR_INVALID_CONTEXT;
  if (stream_memory.load() == StreamMemory::refused) return CUDA_ERROR_NOT_SUPPORTED;
  if (spoils_capture(*stream->work)) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  enter_driver(stream->work->ordinal());
  if (stream_memory.load() == StreamMemory::loses_writes) return CUDA_SUCCESS;
  stream->work->give(
      [address, value] { reinterpret_cast<std::atomic<std::uint32_t>*>(address)->store(value); });
  stream->hold_if_asked();
  return CUDA_SUCCESS;
}
CUresult cuDeviceGetCount(int* count) {
  if (const cudaError_t refused = begin_driver_call("cuDeviceGetCount"))
    return static_cast<CUresult>(refused);
  return *count = kGpus, CUDA_SUCCESS;
}
CUresult cuDeviceGet(CUdevice* device, int ordinal) {
  if (const cudaError_t refused = begin_driver_call("cuDeviceGet")) return static_cast<CUresult>(refused);
  return *device = ordinal, CUDA_SUCCESS;
}
CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned*, int* active) {
  if (const cudaError_t refused = begin_driver_call("cuDevicePrimaryCtxGetState"))
    return static_cast<CUresult>(refused);
  return *active = contexts[static_cast<std::size_t>(device)] ? 1 : 0, CUDA_SUCCESS;
}
cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* argument) {
  if (const cudaError_t refused = begin_call("cudaLaunchHostFunc")) return refused;
  if (is_elsewhere(stream->work->ordinal())) return end_call(cudaErrorInvalidValue);
  ++functions_of_host;
  stream->work->give([function, argument] { function(argument); });
  return stream->hold_if_asked(), cudaSuccess;
}
cudaError_t cudaGetDriverEntryPointByVersion(const char* name, void** function, unsigned, unsigned long long,
                                             cudaDriverEntryPointQueryResult* found) {
  if (const cudaError_t refused = begin_call("cudaGetDriverEntryPointByVersion")) return refused;
  const std::map<std::string_view, void*> calls = {
      {"cuStreamWaitValue32", reinterpret_cast<void*>(&cuStreamWaitValue32)},
      {"cuStreamWriteValue32", reinterpret_cast<void*>(&cuStreamWriteValue32)},
      {"cuDeviceGetCount", reinterpret_cast<void*>(&cuDeviceGetCount)},
      {"cuDeviceGet", reinterpret_cast<void*>(&cuDeviceGet)},
      {"cuDevicePrimaryCtxGetState", reinterpret_cast<void*>(&cuDevicePrimaryCtxGetState)}};
  const bool lacks =
      stream_memory.load() == StreamMemory::missing && std::string_view(name).starts_with("cuStream");
  const auto call = lacks ? calls.end() : calls.find(name);
  *function = call == calls.end() ? nullptr : call->second;
  *found = *function != nullptr ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
  return cudaSuccess;
}
