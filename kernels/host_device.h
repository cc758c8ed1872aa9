// Marks functions of one element that the CPU and CUDA share.
#pragma once

#ifdef __CUDACC__
#define TESSERA_HOST_DEVICE __host__ __device__
#else
#define TESSERA_HOST_DEVICE
#endif
