#include "src/comm/nccl/parent.h"

#include <utility>

#include "src/comm/nccl/channel.h"

namespace tessera::comm {
namespace {

ncclConfig_t without_blocking() {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  return config;
}

}  // namespace

void NcclParent::make(const ncclUniqueId& id, int ranks, int rank) {
  ncclConfig_t config = without_blocking();
  check_nccl(nccl().ncclCommInitRankConfig(&communicator_, ranks, id, rank, &config),
             "ncclCommInitRankConfig");
}

void NcclParent::split(int key) {
  ncclConfig_t config = without_blocking();
  child_ = std::make_shared<ncclComm_t>(nullptr);
  check_nccl(nccl().ncclCommSplit(communicator_, 0, key, child_.get(), &config), "ncclCommSplit",
             communicator_);
}

bool NcclParent::ready() const { return is_done(communicator_, "connecting GPUs"); }

ncclComm_t NcclParent::take_child() { return std::exchange(*child_, nullptr); }

NcclHandle NcclParent::take() {
  return {.communicator = std::exchange(communicator_, nullptr), .split = std::exchange(child_, nullptr)};
}

}  // namespace tessera::comm
