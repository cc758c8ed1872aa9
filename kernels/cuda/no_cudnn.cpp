// The twin of cudnn_attention.cpp in a build without cuDNN: takes nothing.
#include "kernels/cuda/cudnn_attention.h"
#include "tessera/error.h"

namespace tessera::kernels::cuda {
namespace {

[[noreturn]] void refuse() {
  throw UnsupportedError("attention by cuDNN: this build has none; configure with -DTESSERA_WITH_CUDNN=ON");
}

}  // namespace

bool cudnn_takes_forward(const AttentionShape&) { return false; }
bool cudnn_takes_backward(const AttentionShape&) { return false; }
std::int64_t cudnn_forward_workspace_bytes(const AttentionShape&, const Target&) { return 0; }
std::int64_t cudnn_backward_workspace_bytes(const AttentionShape&, const Target&) { return 0; }
void open_cudnn(int) {}
void cudnn_forward(const ComputeContext&, const AttentionShape&, const void*, void*, float*) { refuse(); }
void cudnn_backward(const ComputeContext&, const AttentionShape&, const AttentionBackward&) { refuse(); }
void cudnn_backward(const ComputeContext&, const AttentionShape&, const AttentionSlice&,
                    const AttentionBackward&) {
  refuse();
}

}  // namespace tessera::kernels::cuda
