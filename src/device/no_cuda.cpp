// The twin of the cuda_*.cpp in a build without CUDA.
#include "tessera/device.h"
#include "tessera/error.h"
#include "tessera/machine.h"

namespace tessera {

namespace {
[[noreturn]] void refuse() {
  throw UnsupportedError(
      "a GPU as device: this build has no CUDA; install CUDA 12.4 or later and configure with "
      "-DTESSERA_WITH_CUDA=ON");
}
}  // namespace

std::unique_ptr<Device> make_cuda_device(const CudaDeviceOptions&) { refuse(); }
std::int64_t read_gpu_used_bytes(int) { refuse(); }
StreamWaits read_stream_waits(int) { refuse(); }

CudaMachine read_cuda_machine() {
  CudaMachine machine;
  machine.unusable = "this build has no CUDA; configure with -DTESSERA_WITH_CUDA=ON";
  return machine;
}

}  // namespace tessera
