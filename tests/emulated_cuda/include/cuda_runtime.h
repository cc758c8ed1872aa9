// The part of CUDA's runtime and language that src/device/cuda_*.cpp, src/comm/nccl_*.cpp and kernels/cuda
// use, on the CPU: a few GPUs whose memory the host cannot touch but through copies, whose streams do what
// they are given each by a thread of its own, some later than others, and whose blocks run one after the
// other, a fiber a thread, in every second one from the last thread to the first. It shows what a kernel
// computes, whether its barriers are where they must be, whether its vectors lie where a GPU takes them and,
// by what is computed, whether streams wait for each other; of speed, of races between blocks and of the real
// hardware it shows nothing. Kernels and copies take turns.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>

#define __global__
#define __device__
#define __host__
#define __shared__ static
#define __launch_bounds__(...)

struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};
extern dim3 threadIdx, blockIdx, blockDim, gridDim;

void __syncthreads();
float __shfl_xor_sync(unsigned mask, float value, int lane_mask);
double __shfl_xor_sync(unsigned mask, double value, int lane_mask);
inline float __expf(float x) { return std::exp(x); }
inline unsigned long long atomicAdd(unsigned long long* place, unsigned long long value) {
  const unsigned long long before = *place;
  *place += value;
  return before;
}
inline long long atomicMax(long long* place, long long value) {
  const long long before = *place;
  if (value > before) *place = value;
  return before;
}
using std::fma;
using std::isfinite;

enum cudaError_t {
  cudaSuccess,
  cudaErrorInvalidValue,
  cudaErrorMemoryAllocation,
  cudaErrorNotReady,
  cudaErrorDeviceUninitialized = 201
};
enum cudaMemcpyKind {
  cudaMemcpyHostToDevice,
  cudaMemcpyDeviceToHost,
  cudaMemcpyDeviceToDevice,
  cudaMemcpyDefault
};
enum cudaFuncAttribute { cudaFuncAttributeMaxDynamicSharedMemorySize };
enum cudaDeviceAttr {
  cudaDevAttrMemoryClockRate,
  cudaDevAttrGlobalMemoryBusWidth,
  cudaDevAttrMaxSharedMemoryPerBlockOptin,
  cudaDevAttrMultiProcessorCount,
  cudaDevAttrComputeCapabilityMajor,
  cudaDevAttrComputeCapabilityMinor
};
struct cudaFuncAttributes {
  std::size_t sharedSizeBytes;
};
using cudaStream_t = struct CUstream_st*;
using cudaEvent_t = struct CUevent_st*;
inline const cudaStream_t cudaStreamLegacy = nullptr;
inline constexpr unsigned cudaStreamDefault = 0, cudaStreamNonBlocking = 1, cudaEventDefault = 0,
                          cudaEventDisableTiming = 2, cudaHostAllocDefault = 0;
struct cudaDeviceProp {
  char name[64];
  std::size_t totalGlobalMem;
  int major, minor, multiProcessorCount;
};

enum cudaDriverEntryPointQueryResult { cudaDriverEntryPointSuccess, cudaDriverEntryPointSymbolNotFound };
inline constexpr unsigned long long cudaEnableDefault = 0;

cudaError_t cudaGetDriverEntryPointByVersion(const char* name, void** function, unsigned version,
                                             unsigned long long flags,
                                             cudaDriverEntryPointQueryResult* found);
cudaError_t cudaMalloc(void** memory, std::size_t bytes);
cudaError_t cudaFree(void* memory);
cudaError_t cudaHostAlloc(void** memory, std::size_t bytes, unsigned flags);
cudaError_t cudaFreeHost(void* memory);
cudaError_t cudaMemcpy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind);
cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream);
cudaError_t cudaMemcpy2DAsync(void* to, std::size_t to_pitch, const void* from, std::size_t from_pitch,
                              std::size_t width, std::size_t height, cudaMemcpyKind kind,
                              cudaStream_t stream);
cudaError_t cudaMemsetAsync(void* memory, int value, std::size_t bytes, cudaStream_t stream);
cudaError_t cudaMemGetInfo(std::size_t* free, std::size_t* total);
cudaError_t cudaDriverGetVersion(int* version);
cudaError_t cudaGetDeviceCount(int* count);
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int ordinal);
cudaError_t cudaDeviceGetPCIBusId(char* id, int length, int ordinal);
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int ordinal);
cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest);
cudaError_t cudaInitDevice(int ordinal, unsigned device_flags, unsigned flags);
cudaError_t cudaGetDevice(int* ordinal);
cudaError_t cudaSetDevice(int ordinal);
cudaError_t cudaStreamCreate(cudaStream_t* stream);
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int priority);
cudaError_t cudaStreamGetDevice(cudaStream_t stream, int* ordinal);
cudaError_t cudaStreamDestroy(cudaStream_t stream);
cudaError_t cudaStreamSynchronize(cudaStream_t stream);
cudaError_t cudaDeviceSynchronize();
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags);
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags);
cudaError_t cudaEventDestroy(cudaEvent_t event);
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream);
cudaError_t cudaEventQuery(cudaEvent_t event);
cudaError_t cudaEventSynchronize(cudaEvent_t event);
cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t start, cudaEvent_t end);
cudaError_t cudaGetLastError();
const char* cudaGetErrorName(cudaError_t error);
const char* cudaGetErrorString(cudaError_t error);
// The most shared memory of a block is that of an A100; each kernel is said to have some of it already.
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void* kernel);
cudaError_t set_dynamic_shared_bytes(const void* kernel, int bytes);
template <class Kernel>
cudaError_t cudaFuncSetAttribute(Kernel kernel, cudaFuncAttribute, int bytes) {
  return set_dynamic_shared_bytes(reinterpret_cast<const void*>(kernel), bytes);
}
