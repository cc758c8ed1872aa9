// The twin of what is in this folder, in a build without NCCL.
#include "tessera/communicator.h"

namespace tessera {
namespace {

constexpr const char* kWhy =
    "this build has no NCCL; install CUDA 12.4 or later with NCCL and configure with -DTESSERA_WITH_NCCL=ON";

}  // namespace

NcclLibrary read_nccl_library() { return {.version = {}, .unusable = kWhy}; }

Communicator make_nccl_world(const Communicator&, const NcclOptions&) {
  throw UnsupportedError(std::string("ranks on several GPUs: ") + kWhy);
}

}  // namespace tessera
