// The twin of cudnn_library.cpp in a build without cuDNN.
#include "tessera/machine.h"

namespace tessera {

CudnnLibrary read_cudnn_library() {
  return {.version = {}, .unusable = "this build has no cuDNN; configure with -DTESSERA_WITH_CUDNN=ON"};
}

}  // namespace tessera
