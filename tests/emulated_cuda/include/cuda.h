// The part of CUDA's driver interface that src/device uses.
#pragma once

#include <cuda_runtime.h>

enum CUresult {
  CUDA_SUCCESS,
  CUDA_ERROR_INVALID_CONTEXT = 201,
  CUDA_ERROR_NOT_SUPPORTED = 801,
  CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED = 900
};
using CUstream = cudaStream_t;
using CUdeviceptr = unsigned long long;
using cuuint32_t = std::uint32_t;
inline constexpr unsigned CU_STREAM_WAIT_VALUE_GEQ = 0, CU_STREAM_WRITE_VALUE_DEFAULT = 0;

using CUdevice = int;

// Found by cudaGetDriverEntryPointByVersion().
CUresult cuStreamWaitValue32(CUstream stream, CUdeviceptr address, cuuint32_t value, unsigned flags);
CUresult cuStreamWriteValue32(CUstream stream, CUdeviceptr address, cuuint32_t value, unsigned flags);
CUresult cuDeviceGetCount(int* count);
CUresult cuDeviceGet(CUdevice* device, int ordinal);
CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned* flags, int* active);
