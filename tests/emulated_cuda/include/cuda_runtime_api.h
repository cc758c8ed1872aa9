// Stands in for CUDA's header of this name, see cuda_runtime.h.
#pragma once

#include "cuda_runtime.h"
