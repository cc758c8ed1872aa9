// Stands in for CUDA's header of this name, see cuda_runtime.h.
#pragma once

#include "cuda_runtime.h"

using cudaGraph_t = struct CUgraph_st*;  // named by cuDNN's header, used by nobody
