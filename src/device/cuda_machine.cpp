#include <fmt/format.h>

#include <array>

#include "src/device/cuda_check.h"
#include "src/device/cuda_queues.h"
#include "src/device/host_words.h"
#include "src/device/nvidia_driver.h"
#include "tessera/machine.h"

namespace tessera {
namespace {

using device::check_cuda;

int attribute(cudaDeviceAttr what, int ordinal) {
  int value = 0;
  if (cudaDeviceGetAttribute(&value, what, ordinal) != cudaSuccess) cudaGetLastError();
  return value;
}

CudaGpu read_gpu(int ordinal) {
  cudaDeviceProp found{};
  check_cuda(cudaGetDeviceProperties(&found, ordinal), "cudaGetDeviceProperties");
  std::array<char, 32> bus_id{};
  check_cuda(cudaDeviceGetPCIBusId(bus_id.data(), static_cast<int>(bus_id.size()), ordinal),
             "cudaDeviceGetPCIBusId");
  const double clock_hertz = 1e3 * attribute(cudaDevAttrMemoryClockRate, ordinal);
  const double width_bytes = attribute(cudaDevAttrGlobalMemoryBusWidth, ordinal) / 8.0;
  return {.name = found.name,
          .bus_id = bus_id.data(),
          .memory_bytes = static_cast<std::int64_t>(found.totalGlobalMem),
          .major = found.major,
          .minor = found.minor,
          .multiprocessors = found.multiProcessorCount,
          .bytes_per_second = 2 * clock_hertz * width_bytes};  // two transfers a clock
}

}  // namespace

CudaMachine read_cuda_machine() {
  CudaMachine machine{.cuda = TESSERA_CUDA_VERSION,
                      .nccl = TESSERA_NCCL_VERSION,
                      .cudnn = TESSERA_CUDNN_VERSION,
                      .driver = {},
                      .unusable = {},
                      .gpus = {}};
  device::ask_for_queues();
  int driver = 0;  // stays 0 where none is installed
  if (cudaDriverGetVersion(&driver) == cudaSuccess && driver > 0)
    machine.driver = device::cuda_version_text(driver);
  int count = 0;  // stays unwritten where the call fails
  if (const cudaError_t result = cudaGetDeviceCount(&count); result != cudaSuccess) {
    cudaGetLastError();
    machine.unusable = driver == 0 || result == cudaErrorInsufficientDriver
                           ? device::too_old_driver(CUDART_VERSION, driver, device::read_driver_release())
                           : fmt::format("{} ({})", cudaGetErrorString(result), cudaGetErrorName(result));
    return machine;
  }
  for (int ordinal = 0; ordinal < count; ++ordinal) machine.gpus.push_back(read_gpu(ordinal));
  if (count == 0) machine.unusable = "the driver sees no GPU";
  return machine;
}

StreamWaits read_stream_waits(int ordinal) {
  device::make_current(ordinal);
  return {.why_not = device::HostWords::of(ordinal, std::chrono::seconds(2))->why_not()};
}

std::int64_t read_gpu_used_bytes(int ordinal) {
  device::make_current(ordinal);
  std::size_t free = 0, total = 0;
  check_cuda(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
  return static_cast<std::int64_t>(total - free);
}

}  // namespace tessera
